"""Gives a server another address: other names or ports, or another machine to which its folder was brought."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from fedmrn_app.deploy import service_files
from fedmrn_app.deploy.folder import Federation, check_hosts, check_ports, renew_server
from fedmrn_app.errors import ConfigError
from fedmrn_app.flower.device_records import SETTINGS
from fedmrn_app.runtime.connection import read_connection, replace_connection


def connect(federation: Federation) -> str:
    """Give the operator the connection to a restored folder, unless it leads to a folder that is still there.

    Returns:
        What was done, and for a connection that was left alone what changes it.

    Raises:
        ConfigError: another federation has the connection.
    """
    other, name = _led_to(federation), federation.name
    if other not in (None, federation.path):
        return (
            f"connection {name} still leads to {other}; `fedmrn-deploy move {quote(str(federation.path))}` changes that"
        )
    address = f"127.0.0.1:{federation.control_port}"
    return f"{replace_connection(name, address, federation.authority, federation.home)}: connection {name}"


def _led_to(federation: Federation) -> Path | None:
    """Return the folder of the same authority that the connection leads to; None if there is none."""
    try:
        authority = read_connection(federation.name, federation.home).authority
    except ConfigError:
        return None
    if authority is None or authority.read_bytes() != federation.authority.read_bytes():
        return None
    folder = authority.resolve().parent
    return folder if (folder / SETTINGS).is_file() else None


def move(
    federation: Federation, hosts: Sequence[str] | None = None, port: int | None = None, control_port: int | None = None
) -> Path:
    """Change where the server is reached, and write all files that say so: certificate, bundles, services, connection.

    Without changes the files are written again, as is needed where the folder is at another place than before.

    Args:
        federation: the federation; the keys of its devices and the authority stay.
        hosts: the server's names and addresses; None for no change. Others need a new certificate.
        port: that devices connect to; None for no change.
        control_port: of the SuperLink itself; None for no change.

    Returns:
        Flower's configuration, which has the connection of the operator.

    Raises:
        ConfigError: a host is none, the ports are one, or another connection has the federation's name.
    """
    if hosts is not None:
        check_hosts(hosts)
    new = federation.port if port is None else port, federation.control_port if control_port is None else control_port
    check_ports(*new)
    file = replace_connection(
        federation.name,
        f"127.0.0.1:{new[1]}",
        federation.authority,
        federation.home,
    )
    if hosts is not None and list(hosts) != federation.hosts:
        federation.hosts = list(hosts)
        renew_server(federation)
    federation.port, federation.control_port = new
    federation.save()
    service_files.write_server_services(federation)
    for name in federation.devices:
        service_files.write_device_services(federation, name)
    return file
