"""The commands of `fedmrn-deploy` for a federation that changes: add, remove, move, doctor, backup and restore."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import Any

from fedmrn_app.deploy import backup, doctor, members, roster, service_files
from fedmrn_app.deploy.certificates import make_device_key
from fedmrn_app.deploy.device import read_bundle
from fedmrn_app.deploy.device_doctor import examine_device
from fedmrn_app.deploy.folder import BUNDLE, DEFAULT_FOLDER, Federation, load, opened, read_new_key
from fedmrn_app.deploy.move import connect, move
from fedmrn_app.errors import ConfigError
from fedmrn_app.flower.device_records import SETTINGS
from fedmrn_app.secure.roster import OPERATOR, ROSTER


def port(text: str) -> int:
    """Return a port of the command line."""
    number = int(text)
    if not 0 < number < 1 << 16:
        raise ValueError
    return number


def add_commands(commands: Any) -> None:
    """Add the commands to the parsers of a command line."""
    add = commands.add_parser("add", help="make a further device: the next client number, a key and a bundle")
    add.add_argument("device", nargs="?", help="its name (default: device-NUMBER)")
    add.add_argument("--config", default="", help='settings of its node configuration, such as data-path="/data/mine"')
    add.add_argument("--public-key", type=Path, metavar="FILE", help="of a key that `key` has made on the device")
    add.set_defaults(run=_add)
    remove = commands.add_parser(
        "remove", help="revoke devices' keys and delete their bundles; others keep their numbers"
    )
    remove.add_argument("devices", nargs="+", help="names or numbers")
    remove.set_defaults(run=_remove)
    for parser in (add, remove):
        parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help=f"default: {DEFAULT_FOLDER}")

    mover = commands.add_parser("move", help="change the server's names or ports, or where its folder is")
    mover.add_argument("--host", action="append", help="name or address of the server; may be repeated")
    mover.add_argument("--port", type=port, help="that devices connect to")
    mover.add_argument("--control-port", type=port, help="the operator's, on loopback")
    mover.set_defaults(run=_move)
    examine = commands.add_parser("doctor", help="examine a federation, or on a device its bundle: causes and commands")
    examine.set_defaults(run=_doctor)
    save = commands.add_parser("backup", help="write keys, devices and the SuperLink's state into one file")
    save.add_argument("--to", type=Path, metavar="FILE", help="default: fedmrn-NAME-TIME.tar.gz in this folder")
    save.set_defaults(run=_backup)
    bring = commands.add_parser("restore", help="bring a federation back from a backup")
    bring.add_argument("file", type=Path, help="that `backup` wrote")
    bring.add_argument("--state", action="store_true", help="the SuperLink's state alone, into the folder as it is")
    bring.set_defaults(run=_restore)
    signer = commands.add_parser("sign", help="sign the roster of devices, where the operator's key is kept elsewhere")
    signer.add_argument("--key", type=Path, metavar="FILE", help="the operator's key (default: operator.key beside it)")
    signer.set_defaults(run=_sign)
    maker = commands.add_parser("key", help="on a device: make its key there, so that the server never has it")
    maker.add_argument("folder", type=Path, help="the device's folder")
    maker.set_defaults(run=_key)
    for parser in (mover, examine, save, bring, signer):
        parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT_FOLDER, help=f"default: {DEFAULT_FOLDER}")


def _add(words: argparse.Namespace) -> None:
    with opened(words.folder) as federation:
        public_key = None if words.public_key is None else read_new_key(federation, words.public_key)
        name, error = members.add(federation, words.device, words.config, public_key)
        device = federation.devices[name]
        print(
            f"{name}: client {device.number} of a run; copy {federation.bundle(name)} to the device, and nothing else"
        )
        if error is not None:
            then = "" if error.code == "used" else f", then fedmrn-deploy register {name}"
            print(f"its key is not registered yet ({error}){then}")
        _say_shares(federation)
        say_unsigned(federation)


def _remove(words: argparse.Namespace) -> None:
    with opened(words.folder) as federation:
        before = len(federation.devices)
        for word in words.devices:
            if not federation.had(word):
                federation.device_name(word)  # refuses what never was a device
        for word in words.devices:
            try:
                name = federation.device_name(word)
            except ConfigError as unknown:
                print(f"{unknown}; there is nothing to remove")
                continue
            number = federation.devices[name].number
            error = members.remove(federation, name)
            told = (
                "" if error is None else f"; the gate refuses its key, the SuperLink is told when it starts ({error})"
            )
            print(f"{name}: removed; client {number} takes part in no run any more{told}")
        if len(federation.devices) < before:
            _say_shares(federation)
        say_unsigned(federation)


def say_unsigned(federation: Federation) -> None:
    """Say that the roster waits for the operator's signature, where the key is kept elsewhere."""
    waiting = federation.path / roster.UNSIGNED
    if waiting.is_file():
        sign = f"fedmrn-deploy sign {quote(str(waiting))} --key FILE"
        print(f"{waiting}: waits for the operator's signature: {sign}, on the machine that "
              f"has the key; then bring {ROSTER} here")  # fmt: skip


def _sign(words: argparse.Namespace) -> None:
    file = words.folder.expanduser()
    folder = file if file.is_dir() else file.parent
    if file.is_dir() and not (folder / OPERATOR).is_file():
        with opened(file) as federation:  # it was made by an earlier version
            roster.make_operator(federation.path)
            federation.save()
        print(f"{folder / roster.OPERATOR_KEY}: made; devices demand signed keys once their bundles are copied again")
        return
    signed, found = roster.sign_file(file, words.key or folder / roster.OPERATOR_KEY)
    for number, key in sorted(found.keys.items()):
        print(f"device {number}: {roster.fingerprint(key)}")
    print(f"{signed}: roster {found.serial} of {len(found.keys)} devices, signed")


def _key(words: argparse.Namespace) -> None:
    folder = words.folder.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    private, public = folder / "device.key", folder / "device.pub"
    if private.exists():
        reason = "exists already; the device is known by it"
        raise ConfigError(f"{private}: {reason}", code="exists", value=str(private))
    make_device_key(private, public)
    print(f"{public}: bring it to the server, and there: fedmrn-deploy add --public-key {public.name}, or rotate")


def _say_shares(federation: Federation) -> None:
    """Say which devices have to be given their new share of a run's rows."""
    if names := members.sharing(federation):
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        print(f"without rows of their own (data-path) {shown}: copy their {BUNDLE} again; clients are shared out anew")


def _move(words: argparse.Namespace) -> None:
    with opened(words.folder) as federation:
        before = federation.address
        file = move(federation, words.host, words.port, words.control_port)
        print(
            f"{federation.path}: the server is {federation.address}, and for the operator "
            f"127.0.0.1:{federation.control_port}"
        )
        print(f"{file}: connection {federation.name}\nrestart the server")
        if federation.address != before:
            print(f"devices go on looking for {before}: copy {BUNDLE} of their bundles again, and restart them")


def _doctor(words: argparse.Namespace) -> int:
    place = words.folder.expanduser()
    if (place / BUNDLE).is_file() and not (place / SETTINGS).is_file():
        found = list(examine_device(read_bundle(place)))
    else:
        found = list(doctor.examine(load(words.folder)))
    for each in sorted(found, key=lambda each: not each.fault):
        print(("FAULT  " if each.fault else "ok     ") + each.line)
    faults = sum(each.fault for each in found)
    print(f"{faults} {'fault' if faults == 1 else 'faults'}")
    return 1 if faults else 0


def _backup(words: argparse.Namespace) -> None:
    with opened(words.folder) as federation:
        file = words.to or Path(f"fedmrn-{federation.name}-{datetime.now():%Y%m%d-%H%M%S}.tar.gz")
        written = backup.backup(federation, file)
    print(
        f"{written}: {written.stat().st_size:,} bytes; it holds all private keys, so keep it where only you can read it"
    )


def _restore(words: argparse.Namespace) -> None:
    if words.state:
        with opened(words.folder) as federation:
            before = backup.restore_state(federation, words.file)
        if before is not None:
            print(f"{before}: the state that was there")
    else:
        federation = backup.restore(words.file, words.folder)
        with opened(federation.path):
            service_files.write_server_services(federation)
            print(connect(federation))
    say_unsigned(federation)
    where = quote(str(federation.path))
    if not words.state:
        print(f"{words.file}: does not know what was revoked, removed or rotated after it was written; do that again")
    print(f"{federation.path}: restored\nnext: fedmrn-deploy server {where} --run; "
          f"fedmrn-deploy register --all --folder {where}")  # fmt: skip
