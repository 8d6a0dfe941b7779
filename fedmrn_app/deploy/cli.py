"""The `fedmrn-deploy` command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from shlex import quote

from rich.console import Console

from fedmrn_app.deploy import changes, device, register, server, service_files, status
from fedmrn_app.deploy.folder import (
    DEFAULT_FOLDER,
    Federation,
    check_new,
    create,
    load,
    opened,
    read_new_key,
    renew_server,
)
from fedmrn_app.deploy.node_settings import check_node_config
from fedmrn_app.environment import releases
from fedmrn_app.errors import ConfigError, FedMRNError
from fedmrn_app.runtime.connection import add_connection, check_name, has_connection

_WIDTH = None if sys.stdout is not None and sys.stdout.isatty() else 160  # room for tables in files and pipes
console = Console(highlight=False, soft_wrap=True, width=_WIDTH)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def main() -> None:
    """Run the `fedmrn-deploy` command; exit with 0, with 1 if something failed, with 2 on a wrong command line."""
    words = _parser().parse_args()
    try:
        sys.exit(words.run(words))
    except FedMRNError as error:
        errors.print(f"fedmrn-deploy: {error}", markup=False)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)


def _init(words: argparse.Namespace) -> None:
    name = check_name(words.name)
    path = Path(words.folder).expanduser().resolve()
    address = f"127.0.0.1:{words.control_port}"
    check_new(path, words.host, words.devices, words.port, words.control_port)
    has_connection(name, address, path / "ca.crt")  # refuses the name of another one
    federation = create(path, words.host, words.devices, name=name, port=words.port, control_port=words.control_port)
    service_files.write_server_services(federation)
    for each in federation.devices:
        service_files.write_device_services(federation, each)
    file = add_connection(name, address, federation.authority)
    console.print(
        f"{path}: certificate for {', '.join(words.host)}, keys of {words.devices} devices\n"
        f"{file}: connection {name}, for `fedmrn --on {name}` on this machine\n"
        f"next: fedmrn-deploy server {quote(str(path))} --run; "
        f"fedmrn-deploy register --all --folder {quote(str(path))}",
        markup=False,
    )


def _server(words: argparse.Namespace) -> None:
    with opened(words.folder) as federation:
        if words.max_message is not None:
            federation.max_message = words.max_message
            federation.save()
        if words.renew:
            renew_server(federation)
            console.print("new server key and certificate; a server that runs takes them within seconds", markup=False)
    if words.run_now:
        server.run_server(federation, words.listen)
    _print_files(service_files.write_server_services(federation))


def _device(words: argparse.Namespace) -> None:
    if words.run_now:
        device.run_device(device.read_bundle(Path(words.device)), warm=not words.cold)
    with opened(words.folder) as federation:
        name = federation.device_name(words.device)
        if words.config is not None:
            federation.devices[name].config = check_node_config(words.config)
            federation.save()
        _print_files(service_files.write_device_services(federation, name))
    console.print(f"copy {federation.bundle(name)} to the device, and nothing else", markup=False)


def _register(words: argparse.Namespace) -> None:
    with opened(words.folder) as federation:
        names = _chosen(federation, words)
        left = [name for name in names if words.all and federation.devices[name].revoked]
        names = [name for name in names if name not in left]
        new = register.register(federation, names, words.samples)
    console.print(
        f"registered: {', '.join(new) or ('none; all others are' if left else 'none; all are')}", markup=False
    )
    if left:
        reason = f"{register.past(left)} revoked; {register.rotation(federation, left)}"
        console.print(f"left out: {', '.join(left)}; {reason}", markup=False)
    if words.samples is not None and names:
        console.print(f"confirmed: {words.samples} samples for each client of {', '.join(names)}", markup=False)


def _revoke(words: argparse.Namespace) -> None:
    with opened(words.folder) as federation:
        register.revoke(federation, words.devices)
        changes.say_unsigned(federation)
    console.print(f"revoked: {', '.join(words.devices)}", markup=False)


def _rotate(words: argparse.Namespace) -> None:
    with opened(words.folder) as federation:
        names = _chosen(federation, words)
        public_key = None if words.public_key is None else read_new_key(federation, words.public_key)
        if public_key is not None and len(names) != 1:
            reason = "is the key of one device; name that one"
            raise ConfigError(f"--public-key={words.public_key}: {reason}", code="conflict", key="--public-key")
        register.rotate(federation, names, public_key)
        changes.say_unsigned(federation)
    console.print(f"new keys registered: {', '.join(names)}; copy their folders again and restart them", markup=False)


def _status(words: argparse.Namespace) -> None:
    found = status.read_status(load(words.folder))
    if words.json:
        print(json.dumps([asdict(each) for each in found], indent=2))
    else:
        status.print_status(console, found)


def _try(words: argparse.Namespace) -> int:
    from fedmrn_app.deploy import local_trial  # imports PyTorch, which the other commands do without

    start = partial(local_trial.start_local, warm=not words.cold)
    return local_trial.run_trial(words.devices, words.overrides, console, start)


def _chosen(federation: Federation, words: argparse.Namespace) -> Sequence[str]:
    names: list[str] = list(federation.devices) if words.all else words.devices
    if not names:
        raise ConfigError("name devices, or give --all", code="missing", key="devices")
    return [federation.device_name(name) for name in names]


def _print_files(files: Sequence[Path]) -> None:
    for file in files:
        console.print(str(file), markup=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fedmrn-deploy", description="Run fedmrn on real devices.")
    parser.add_argument("--version", action="version", version=releases(), help="print the versions, and end")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    init = commands.add_parser("init", help="make the authority, the server's certificate and the devices' keys")
    init.add_argument("--host", action="append", required=True, help="name or address of the server; may be repeated")
    init.add_argument("--devices", type=int, required=True, metavar="N", help="how many devices")
    init.add_argument("--name", default="fedmrn", help="of the connection, for `fedmrn --on NAME` (default: fedmrn)")
    init.add_argument("--port", type=changes.port, default=9091, help="that devices connect to (default: 9091)")
    init.add_argument(
        "--control-port", type=changes.port, default=9092, help="the operator's, on loopback (default: 9092)"
    )
    _add_folder(init)
    init.set_defaults(run=_init)

    serve = commands.add_parser("server", help="write the server's unit and compose file, or run it")
    serve.add_argument("--run", dest="run_now", action="store_true", help="serve now, in the foreground")
    serve.add_argument("--listen", default="0.0.0.0", help="address for devices (default: all of this machine's)")
    serve.add_argument("--max-message", type=_size, metavar="MB", help="largest object of a reply (default: 256)")
    serve.add_argument("--renew", action="store_true", help="make a new server key and certificate first")
    _add_folder(serve)
    serve.set_defaults(run=_server)

    node = commands.add_parser("device", help="write a device's unit, compose file and settings, or run it there")
    node.add_argument("device", help="name or number of the device; with --run, the folder that was copied to it")
    node.add_argument("--config", help='more settings of its node configuration, such as data-path="/data/mine"')
    node.add_argument("--run", dest="run_now", action="store_true", help="run the device now, in the foreground")
    node.add_argument("--cold", action="store_true", help="start a new process for each message: slower, less memory")
    _add_folder(node)
    node.set_defaults(run=_device)

    for name, run, text in (
        ("register", _register, "register the keys of devices, which may then connect"),
        ("revoke", _revoke, "revoke the keys of devices"),
        ("rotate", _rotate, "replace the keys of devices by new ones"),
    ):
        keys = commands.add_parser(name, help=text)
        keys.add_argument("devices", nargs="*" if name != "revoke" else "+", help="names or numbers")
        if name != "revoke":
            keys.add_argument("--all", action="store_true", help="all devices")
        if name == "rotate":
            keys.add_argument("--public-key", type=Path, metavar="FILE", help="of a key that was made on the device")
        if name == "register":
            keys.add_argument("--samples", type=int, metavar="N", help="confirm N samples for each of their clients")
        keys.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help=f"default: {DEFAULT_FOLDER}")
        keys.set_defaults(run=run)

    state = commands.add_parser("status", help="show the devices: connected, last seen, clients, messages answered")
    state.add_argument("--json", action="store_true", help="for programs")
    _add_folder(state)
    state.set_defaults(run=_status)
    changes.add_commands(commands)

    once = commands.add_parser("try", help="deploy on this machine for one run, and clean up")
    once.add_argument("--devices", type=int, default=3, metavar="N", help="how many (default: 3)")
    once.add_argument("--cold", action="store_true", help="start a new process for each message")
    once.add_argument("overrides", nargs="*", metavar="-- OVERRIDE", help="of the run, such as rounds=3")
    once.set_defaults(run=_try)
    return parser


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT_FOLDER, help=f"default: {DEFAULT_FOLDER}")


def _size(text: str) -> int:
    size = int(text)
    if not 0 < size <= 1 << 20:
        raise ValueError
    return size


if __name__ == "__main__":
    main()
