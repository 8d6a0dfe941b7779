"""A federation's folder on the server: authority, certificates, devices and settings."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address
from pathlib import Path

from filelock import FileLock

from fedmrn_app.deploy.certificates import (
    authority_key,
    fingerprint,
    make_authority,
    make_device_key,
    make_server,
    read_device_key,
    write_private,
)
from fedmrn_app.deploy.roster import make_operator, update_roster
from fedmrn_app.environment import flower_home
from fedmrn_app.errors import ConfigError
from fedmrn_app.flower.device_records import SETTINGS
from fedmrn_app.runtime.connection import Connection

DEFAULT_FOLDER = Path("~/fedmrn-federation")
BUNDLE = "device.json"


@dataclass
class Device:
    """The server's record of one device.

    Attributes:
        number: the client that it hosts; `partition-id` in Flower's words.
        node_id: its id at the SuperLink; None before it is registered and after it is revoked.
        revoked: whether its key was revoked.
        config: more settings of its node configuration, such as `data-path="/data"`.
        samples: the number of samples of each of its clients, confirmed by the operator; None if it is not.
    """

    number: int
    node_id: int | None = None
    revoked: bool = False
    config: str = ""
    samples: int | None = None


@dataclass(kw_only=True)
class Federation:
    """A federation's folder and settings.

    Attributes:
        path: the folder.
        name: of the connection in Flower's config.toml.
        hosts: the server's names and addresses; devices connect to the first one.
        port: that devices connect to.
        control_port: of the SuperLink itself, on loopback.
        devices: by name.
        slots: the number of client numbers given out so far. A device that leaves takes its number with it, so that the
            others keep theirs; clients of a run that share out its rows are divided by this number.
        former: node ids of keys that were revoked or replaced, which an older `state.db` may know again.
        former_keys: the devices that had these keys, also those that were removed, by the keys' fingerprints.
        max_message: MiB of the largest object that a device may send, which is about the size of a reply.
        home: the FLWR_HOME of Flower's commands and processes, which is not saved; None for the usual one.
    """

    path: Path
    name: str
    hosts: list[str]
    port: int
    control_port: int
    devices: dict[str, Device] = field(default_factory=dict)
    slots: int = 0
    former: list[int] = field(default_factory=list)
    former_keys: dict[str, str] = field(default_factory=dict)
    max_message: int = 256
    home: Path | None = None

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
        """The times at which the gate last heard from each device."""
        return self.path / "seen.json"

    @property
    def address(self) -> str:
        """Host and port that devices connect to."""
        return f"{bracketed(self.hosts[0])}:{self.port}"

    def bundle(self, device: str) -> Path:
        """Return the folder that is copied to a device."""
        return self.path / "devices" / device

    def public_key(self, device: str) -> Path:
        """Return the file of a device's public key."""
        return self.bundle(device) / "device.pub"

    def fingerprint(self, device: str) -> str | None:
        """Return the fingerprint of a device's public key; None if its file cannot be read."""
        try:
            return fingerprint(read_device_key(self.public_key(device)))
        except ConfigError:
            return None

    def shared_keys(self) -> list[list[str]]:
        """Return the devices that have one key together, for each such key; those that are registered come first."""
        owners: dict[str, list[str]] = {}
        for name in sorted(self.devices, key=lambda name: self.devices[name].node_id is None):
            if (key := self.fingerprint(name)) is not None:
                owners.setdefault(key, []).append(name)
        return [names for names in owners.values() if len(names) > 1]

    def had(self, name: str) -> bool:
        """Return whether there was a device of this name, or with this number, that was removed."""
        gone = set(range(self.slots)) - {device.number for device in self.devices.values()}
        number = name.removeprefix("device-")
        return name in self.former_keys.values() or (number.isdecimal() and int(number) in gone)

    def connection(self, port: int) -> Connection:
        """Return the connection to a port of the server from the server's own machine."""
        return Connection(self.name, f"127.0.0.1:{port}", self.authority, self.home or flower_home())

    def device_name(self, name: str) -> str:
        """Return the full name of a device from its name or number.

        Raises:
            ConfigError: the federation has no such device.
        """
        numbers = {str(device.number): known for known, device in self.devices.items()}
        full = numbers.get(name, f"device-{name}") if name.isdigit() else name
        if full not in self.devices:
            known = ", ".join(list(self.devices)[:5]) + (", ..." if len(self.devices) > 5 else "")
            raise ConfigError(
                f"{full}: is no device of {self.path}, which has {known}", code="unknown", key="device", value=full
            )
        return full

    def save(self, *, new_roster: bool = False) -> None:
        """Write the settings, the settings of each device into its bundle, and the roster of the devices.

        Args:
            new_roster: whether the roster gets a new serial number though it has the same devices.
        """
        values = {key: value for key, value in asdict(self).items() if key not in ("path", "home")}
        _write_json(self.path / SETTINGS, values)
        for name, device in self.devices.items():
            place = f"partition-id={device.number} num-partitions={self.slots}"
            settings = {
                "name": name,
                "server": self.address,
                "node_config": f"{place} {device.config}".strip(),
            }
            _write_json(self.bundle(name) / BUNDLE, settings)
        bundles = {device.number: self.bundle(name) for name, device in self.devices.items() if not device.revoked}
        update_roster(self.path, self.slots, bundles, again=new_roster)


def create(
    path: Path,
    hosts: Sequence[str],
    devices: int,
    *,
    name: str = "fedmrn",
    port: int = 9091,
    control_port: int = 9092,
) -> Federation:
    """Make a new federation's folder with all keys and certificates; see `Federation`.

    Raises:
        ConfigError: as `check_new`, or the folder cannot be written.
    """
    check_new(path, hosts, devices, port, control_port)
    try:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        (path / ".gitignore").write_text("*\n")  # the folder may be inside of a checkout
        federation = Federation(path=path, name=name, hosts=list(hosts), port=port, control_port=control_port)
        make_authority(federation.authority_key, federation.authority)
        make_operator(path)
        renew_server(federation)
        for number in range(devices):
            add_device(federation, f"device-{number}")
        federation.save()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}", code="no-write", value=str(path)) from error
    return federation


def check_new(path: Path, hosts: Sequence[str], devices: int, port: int, control_port: int) -> None:
    """Check the values of a federation that is to be made.

    Raises:
        ConfigError: `path` exists already, or a value is out of range.
    """
    if devices < 1:
        raise ConfigError(f"--devices={devices}: must be at least 1", code="range", key="--devices", value=devices)
    check_hosts(hosts)
    check_ports(port, control_port)
    if not str(path).isprintable():
        raise ConfigError(f"{str(path)!a}: has characters that a service cannot name", code="path", value=str(path))
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise ConfigError(
            f"{path}: exists already, and its keys would be lost; name another folder", code="exists", value=str(path)
        )


def renew_server(federation: Federation) -> None:
    """Give the server a new key and certificate of the same authority."""
    paths = (federation.authority_key, federation.authority, federation.key, federation.certificate)
    make_server(federation.hosts, *paths)


def check_hosts(hosts: Sequence[str]) -> None:
    """Check the names and addresses of a server.

    Raises:
        ConfigError: there are none, or one has characters that none can have.
    """
    if not hosts or not all(host.strip() for host in hosts):
        raise ConfigError(
            "--host: give a name or address by which devices reach the server", code="missing", key="--host"
        )
    for host in hosts:
        if not re.fullmatch(r"[A-Za-z0-9._:-]+", host):
            reason = "is no name or address; it may have letters, digits, dots, hyphens and, in an IPv6 address, colons"
            raise ConfigError(f"--host={host!a}: {reason}", code="host", key="--host", value=host)
        if ":" in host and not _is_address(host):
            reason = "is no IPv6 address; leave the port out; --port sets it"
            raise ConfigError(f"--host={host}: {reason}", code="host", key="--host", value=host)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def check_ports(port: int, control_port: int) -> None:
    """Check that the devices' port and the operator's are different ones.

    Raises:
        ConfigError: they are the same.
    """
    if port == control_port:
        reason = "is the port of the devices too; take another one, or another --port"
        raise ConfigError(
            f"--control-port={control_port}: {reason}", code="conflict", key="--control-port", value=control_port
        )


def add_device(federation: Federation, name: str, public_key: bytes | None = None) -> None:
    """Give a new device the next client number, and make its bundle with its key and the authority's certificate.

    Args:
        federation: the federation.
        name: of the device.
        public_key: of a key that was made on the device; None to make one here.
    """
    bundle = federation.bundle(name)
    bundle.mkdir(parents=True)
    bundle.chmod(0o700)
    give_key(federation, name, public_key)
    shutil.copyfile(federation.authority, bundle / "ca.crt")
    federation.devices[name] = Device(federation.slots)
    federation.slots += 1


def give_key(federation: Federation, name: str, public_key: bytes | None = None) -> None:
    """Give a device a new key: one that is made here, or the public key of one that was made on the device."""
    private, public = federation.bundle(name) / "device.key", federation.public_key(name)
    if public_key is None:
        make_device_key(private, public)
    else:
        private.unlink(missing_ok=True)
        public.write_bytes(public_key)


def read_new_key(federation: Federation, file: Path) -> bytes:
    """Return the public key of a device that made its key itself, which nobody in the federation has or had.

    Raises:
        ConfigError: the file holds no such key, or it is that of another device, or one that was revoked or replaced.
    """
    public_key = read_device_key(file)
    key = fingerprint(public_key)
    owners = {found: f"the key of {name}" for name in federation.devices if (found := federation.fingerprint(name))}
    former = federation.former_keys.get(key)
    owner = owners.get(key) or (former and f"a key of {former} that was revoked or replaced")
    if owner is None and public_key == authority_key(federation.authority):
        owner = "the key of the authority"
    if owner is not None:
        reason = f"is {owner}; make a new one on the device with `fedmrn-deploy key FOLDER`"
        raise ConfigError(f"--public-key={file}: {reason}", code="exists", key="--public-key", value=str(file))
    return public_key


@contextmanager
def opened(path: Path) -> Iterator[Federation]:
    """Read a federation's folder, and let no other command change it until the context is left.

    Raises:
        ConfigError: as `load`.
    """
    place = path.expanduser().resolve()
    if not place.is_dir():
        load(path)  # says what is wrong
    with FileLock(place / ".lock", mode=0o600):
        yield load(path)


def load(path: Path) -> Federation:
    """Read a federation's folder.

    Raises:
        ConfigError: the folder holds no federation, or its settings are damaged.
    """
    path = path.expanduser().resolve()
    file = path / SETTINGS
    try:
        values = json.loads(file.read_text())
        devices = {name: Device(**device) for name, device in values.pop("devices").items()}
        values.setdefault("slots", 1 + max((device.number for device in devices.values()), default=-1))
        return Federation(path=path, devices=devices, **values)
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: holds no federation; make one with `fedmrn-deploy init --host NAME`",
            code="no-federation", value=str(path),
        ) from None  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"cannot be read: {type(error).__name__}: {error}"
        raise ConfigError(f"{file}: {reason}", code="unreadable", value=str(file)) from error


def bracketed(host: str) -> str:
    """Return a host in the form in which it stands before a port."""
    return f"[{host}]" if ":" in host else host


def _write_json(path: Path, values: object) -> None:
    write_private(path, (json.dumps(values, indent=2) + "\n").encode())
