"""Writes a federation's folder into one file, and brings it back: keys, certificates, devices and SuperLink's state.

The SuperLink's database is copied by SQLite itself, so that a backup of a running server is consistent.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from fedmrn_app.deploy.folder import Federation, load
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.flower.device_records import SETTINGS

_LEFT_OUT = {".lock", "home", "server"}  # written again, or of Flower's running processes
_DATABASE = "state.db"
_BESIDE = ("-wal", "-shm")  # files that SQLite keeps beside a database in use
_PARTIAL = ".partial"


def backup(federation: Federation, file: Path) -> Path:
    """Write all that a federation needs into a compressed tar file that only its owner can read.

    Args:
        federation: the federation, whose server may run.
        file: to write.

    Raises:
        ConfigError: the file exists already, or would be inside of the federation's folder.
        RunError: it cannot be written, or the database cannot be read.
    """
    file = file.expanduser().resolve()
    if os.path.lexists(file):
        raise ConfigError(f"{file}: exists already; name another file with --to", code="exists", value=str(file))
    if file.is_relative_to(federation.path.resolve()):
        reason = f"is inside of {federation.path}, with which it would be lost; name a file elsewhere with --to"
        raise ConfigError(f"{file}: {reason}", code="inside", key="--to", value=str(file))
    written = file.with_name(file.name + _PARTIAL)
    try:
        with tempfile.TemporaryDirectory(prefix="fedmrn-backup-", dir=federation.path) as temporary:
            copy = Path(temporary) / _DATABASE
            if federation.database.is_file():
                _copy_database(federation.database, copy)
            descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
                for each in _kept(federation.path, Path(temporary)):
                    archive.add(each, each.name, filter=partial(_without_backups, federation.path))
                if copy.is_file():
                    archive.add(copy, _DATABASE)
        written.replace(file)
    except (OSError, sqlite3.Error) as error:
        written.unlink(missing_ok=True)
        raise RunError(f"{file}: cannot be written: {error}", code="no-write", value=str(file)) from None
    return file


def restore(file: Path, path: Path) -> Federation:
    """Bring a federation's folder back from a backup.

    Args:
        file: that `backup` wrote.
        path: of the folder, which is new or empty.

    Raises:
        ConfigError: the folder holds something already, or the file is no intact backup.
    """
    path = path.expanduser().resolve()
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        reason = "exists already; restore into a new folder, or --state brings back the SuperLink's state alone"
        raise ConfigError(f"{path}: {reason}", code="exists", value=str(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _unpacked(file, path.parent) as folder:
            (folder / ".gitignore").write_text("*\n")
            folder.chmod(0o700)
            os.replace(folder, path)
        federation = load(path)
        federation.save(new_roster=True)  # devices may have seen a later roster than that of the backup
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}", code="no-write", value=str(path)) from None
    return federation


def restore_state(federation: Federation, file: Path) -> Path | None:
    """Bring the SuperLink's state back alone, while the server is stopped.

    Returns:
        Where the state that was there has been put; None if there was none.

    Raises:
        ConfigError: the file is no intact backup, is of another federation, or holds no state.
        RunError: the server runs.
    """
    if federation.connection(federation.control_port).fault() is None:
        reason = f"the server of {federation.path} runs; stop it first"
        raise RunError(reason, code="running", value=str(federation.path))
    before = federation.database.with_name(f"{_DATABASE}.before")
    with _unpacked(file, federation.path) as folder:
        if (folder / "ca.crt").read_bytes() != federation.authority.read_bytes():
            reason = f"is of another federation than {federation.path}"
            raise ConfigError(f"{file}: {reason}", code="other", value=str(file))
        if not (folder / _DATABASE).is_file():
            reason = "holds no state of a SuperLink, which had not run before; start the server without one"
            raise ConfigError(f"{file}: {reason}", code="no-state", value=str(file))
        had = federation.database.is_file()
        if had:
            _copy_database(federation.database, before)
        for name in (_DATABASE, *(f"{_DATABASE}{suffix}" for suffix in _BESIDE)):
            (federation.path / name).unlink(missing_ok=True)
        os.replace(folder / _DATABASE, federation.database)
    return before if had else None


def _kept(path: Path, temporary: Path) -> Iterator[Path]:
    """Yield what a backup holds of a folder beside the database."""
    for each in sorted(path.iterdir()):
        other = (
            each == temporary or each.name.startswith(_DATABASE) or each.name.endswith((_PARTIAL, ".tar.gz", ".tgz"))
        )
        if each.name not in _LEFT_OUT and not other:
            yield each


def _without_backups(path: Path, info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out a backup that lies in a folder, under whatever name: it would be in each later one."""
    return None if info.isfile() and _is_backup(path / info.name) else info


def _is_backup(file: Path) -> bool:
    try:
        with tarfile.open(file, "r:gz") as archive:
            return any(member.name == SETTINGS for member in archive)
    except (OSError, EOFError, tarfile.TarError):
        return False


def _copy_database(source: Path, target: Path) -> None:
    """Copy a database that another process may write to now."""
    target.unlink(missing_ok=True)
    with (
        closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as old,
        closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)
    target.chmod(0o600)


@contextmanager
def _unpacked(file: Path, parent: Path) -> Iterator[Path]:
    """Unpack a backup into a folder below `parent`, which is deleted afterwards if it is still there.

    Raises:
        ConfigError: it is no intact backup.
    """
    folder = Path(tempfile.mkdtemp(prefix=".fedmrn-restore-", dir=parent))
    try:
        _unpack(file, folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract files and folders, none of which may lie outside of `folder`.

    Raises:
        TarError: another member is found.
    """
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
        return
    for member in archive:  # before Python 3.11.4, which Debian 12 has
        inside = (folder / member.name).resolve().is_relative_to(folder.resolve())
        if not inside or not (member.isfile() or member.isdir()):
            raise tarfile.ExtractError(f"{member.name} is no file inside of it")
        archive.extract(member, folder)


def _unpack(file: Path, folder: Path) -> None:
    """Unpack a backup, and check what it holds.

    Raises:
        ConfigError: it is no intact backup.
    """
    try:
        with tarfile.open(file.expanduser(), "r:gz") as archive:
            _extract(archive, folder)
        if not (folder / SETTINGS).is_file():
            raise ConfigError(f"{file}: is no backup of a federation", code="no-backup", value=str(file))
        load(folder)
    except (OSError, EOFError, tarfile.TarError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"is no intact backup: {error}"
        raise ConfigError(f"{file}: {reason}", code="no-backup", value=str(file)) from None
