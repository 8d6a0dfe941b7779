"""Adds devices to a federation and removes them; the other devices keep their keys and their client numbers."""

from __future__ import annotations

import re
import shutil

from fedmrn_app.deploy import register, service_files
from fedmrn_app.deploy.folder import Federation, add_device
from fedmrn_app.deploy.node_settings import check_node_config
from fedmrn_app.errors import ConfigError, RunError


def add(
    federation: Federation, name: str | None = None, config: str = "", public_key: bytes | None = None
) -> tuple[str, RunError | None]:
    """Make a device with the next client number, its key and bundle, and register the key if the server runs.

    Args:
        federation: the federation.
        name: of the device; None for `device-NUMBER`.
        config: more settings of its node configuration.
        public_key: of a key that was made on the device; None to make one.

    Returns:
        The name, and why the key is not registered yet; None if it is.

    Raises:
        ConfigError: the name is that of another device, or like it but for zeros and capitals, or has other characters
            than letters, digits, -, _ and dots; or `config` has settings that a device does not have.
    """
    full = f"device-{federation.slots}" if name is None else name
    if full.isdigit() or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", full):
        reason = "may have letters, digits, -, _ and dots, and is no number, which the device is given"
        raise ConfigError(f"device={full}: {reason}", code="name", key="device", value=full)
    if full in federation.devices or federation.bundle(full).exists():
        reason = f"is a device of {federation.path} already; take another name"
        raise ConfigError(f"device={full}: {reason}", code="exists", key="device", value=full)
    if alike := [other for other in federation.devices if _plain(other) == _plain(full)]:
        reason = f"differs from {alike[0]} in zeros or capitals only; take another name"
        raise ConfigError(f"device={full}: {reason}", code="exists", key="device", value=full)
    check_node_config(config)
    add_device(federation, full, public_key)
    federation.devices[full].config = config
    federation.save()
    service_files.write_device_services(federation, full)
    try:
        register.register(federation, [full])
    except RunError as error:
        return full, error
    return full, None


def _plain(name: str) -> str:
    """Return a name without capitals, and without zeros before its numbers."""
    return re.sub(r"(?<!\d)0+(?=\d)", "", name.lower())


def remove(federation: Federation, name: str) -> RunError | None:
    """Revoke a device's key and delete its bundle; its client number is not given to another device.

    The gate refuses its key from now on. Where the SuperLink does not run, it is told when it starts.

    Returns:
        Why the SuperLink has not been told; None if it has.

    Raises:
        ConfigError: the federation has no such device.
    """
    full = federation.device_name(name)
    register.set_aside(federation, full)
    del federation.devices[full]
    federation.save()
    shutil.rmtree(federation.bundle(full), ignore_errors=True)
    return tell(federation)


def tell(federation: Federation) -> RunError | None:
    """Have the SuperLink revoke all keys that were revoked here; return why it has not."""
    try:
        connection = register.operator(federation)
        register.revoke_former(federation, connection, register.known_nodes(connection))
    except RunError as error:
        return error
    return None


def sharing(federation: Federation) -> list[str]:
    """Return the devices without rows of their own, whose share of a run's rows follows from the number of devices."""
    return [name for name, device in federation.devices.items() if "data-path=" not in device.config]
