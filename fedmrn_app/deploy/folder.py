"""A federation's folder on the server: authority, certificates, devices, settings."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedmrn_app.deploy.certificates import make_authority, make_device_key, make_server, write_private
from fedmrn_app.errors import ConfigError

DEFAULT_FOLDER = Path("~/fedmrn-federation")
SETTINGS = "federation.json"
BUNDLE = "device.json"


@dataclass
class Device:
    """One device.

    Attributes:
        number: which client it is; `partition-id` in Flower's words.
        node_id: as the SuperLink knows it, None before it is registered and after it is revoked.
        revoked: whether it was shut out.
        config: what else its node configuration says, such as `data-path="/data"`.
    """

    number: int
    node_id: int | None = None
    revoked: bool = False
    config: str = ""


@dataclass
class Federation:
    """A federation's folder and settings.

    Attributes:
        path: the folder.
        name: of the connection in Flower's config.toml.
        hosts: the server's names and addresses, the first of which devices are told.
        port: that devices connect to.
        control_port: of the SuperLink itself, on loopback.
        devices: by name.
    """

    path: Path
    name: str
    hosts: list[str]
    port: int
    control_port: int
    devices: dict[str, Device] = field(default_factory=dict)

    @property
    def authority(self) -> Path:
        """The authority's certificate, which every device and the operator have."""
        return self.path / "ca.crt"

    @property
    def authority_key(self) -> Path:
        """The authority's private key."""
        return self.path / "ca.key"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.path / "server.pem"

    @property
    def key(self) -> Path:
        """The server's private key."""
        return self.path / "server.key"

    @property
    def database(self) -> Path:
        """The SuperLink's state."""
        return self.path / "state.db"

    @property
    def seen(self) -> Path:
        """When the gate last heard from each device."""
        return self.path / "seen.json"

    def bundle(self, device: str) -> Path:
        """The folder that one device is given, and nothing else."""
        return self.path / "devices" / device

    def public_key(self, device: str) -> Path:
        """A device's public key."""
        return self.bundle(device) / "device.pub"

    def device(self, name: str) -> Device:
        """A device by its name, which may be its number.

        Raises:
            ConfigError: there is none.
        """
        name = self.device_name(name)
        return self.devices[name]

    def device_name(self, name: str) -> str:
        """The full name of a device; see `device`."""
        full = f"device-{name}" if name.isdigit() else name
        if full not in self.devices:
            known = ", ".join(list(self.devices)[:5]) + (", ..." if len(self.devices) > 5 else "")
            raise ConfigError(f"{full}: is no device of {self.path}, which has {known}")
        return full

    def save(self) -> None:
        """Write the settings, and each device's own into its bundle."""
        values: dict[str, Any] = asdict(self)
        del values["path"]
        write_private(self.path / SETTINGS, (json.dumps(values, indent=2) + "\n").encode())
        for name, device in self.devices.items():
            place = f"partition-id={device.number} num-partitions={len(self.devices)}"
            settings = {
                "name": name,
                "server": f"{bracketed(self.hosts[0])}:{self.port}",
                "node_config": f"{place} {device.config}".strip(),
            }
            write_private(self.bundle(name) / BUNDLE, (json.dumps(settings, indent=2) + "\n").encode())


def create(
    path: Path, hosts: Sequence[str], devices: int, name: str = "fedmrn", port: int = 9091, control_port: int = 9092
) -> Federation:
    """Make a new federation's folder with all keys and certificates; see `Federation`.

    Raises:
        ConfigError: there is something at `path` already, or a value is out of range.
    """
    if devices < 1:
        raise ConfigError(f"--devices={devices}: must be at least 1")
    if not hosts or not all(host.strip() for host in hosts):
        raise ConfigError("--host: say by which names or addresses devices reach the server")
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise ConfigError(f"{path}: is there already, and its keys would be lost; name another folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        (path / ".gitignore").write_text("*\n")  # inside of a checkout nothing of it may be committed
        federation = Federation(path, name, list(hosts), port, control_port)
        make_authority(federation.authority_key, federation.authority)
        renew_server(federation)
        for number in range(devices):
            add_device(federation, number)
        federation.save()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
    return federation


def renew_server(federation: Federation) -> None:
    """Give the server a new key and certificate, of the same authority."""
    paths = (federation.authority_key, federation.authority, federation.key, federation.certificate)
    make_server(federation.hosts, *paths)


def add_device(federation: Federation, number: int) -> None:
    """Make a device's bundle: its key and the authority's certificate."""
    name = f"device-{number}"
    bundle = federation.bundle(name)
    bundle.mkdir(parents=True)
    bundle.chmod(0o700)
    make_device_key(bundle / "device.key", bundle / "device.pub")
    shutil.copyfile(federation.authority, bundle / "ca.crt")
    federation.devices[name] = Device(number)


def load(path: Path) -> Federation:
    """Read a federation's folder.

    Raises:
        ConfigError: it holds none, or what it holds is damaged.
    """
    path = path.expanduser().resolve()
    file = path / SETTINGS
    try:
        values = json.loads(file.read_text())
        devices = {name: Device(**device) for name, device in values.pop("devices").items()}
        return Federation(path=path, devices=devices, **values)
    except FileNotFoundError:
        raise ConfigError(f"{path}: holds no federation; make one with `fedmrn-deploy init --host NAME`") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file}: cannot be read: {type(error).__name__}: {error}") from error


def bracketed(host: str) -> str:
    """A host as it stands before a port."""
    return f"[{host}]" if ":" in host else host
