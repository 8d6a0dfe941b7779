"""A path that the configuration names, and the errors about what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedmrn_app.errors import DataError


@dataclass(frozen=True)
class Place:
    """A source of data, named as its key and value in the configuration.

    Attributes:
        key: `dataset.path`, `data-path` on a device, or `dataset` where the rows are not on this machine's disk.
        value: the path, or the name of the data set.
        part: the part of it that errors are about, such as `test split: `.
    """

    key: str
    value: str
    part: str = ""

    def __str__(self) -> str:
        return f"{self.key}={self.value}"

    @property
    def on_disk(self) -> bool:
        """Whether the rows are on this machine's disk, and not on the hub or in scikit-learn."""
        return self.key != "dataset"

    def error(self, code: str, problem: str) -> DataError:
        """Return an error whose line begins with the key and the value."""
        return DataError(f"{self}: {self.part}{problem}", code=code, key=self.key, value=self.value)

    def absolute(self) -> Path:
        """Return the absolute path of something that may be missing; raises DataError where the path is not valid."""
        with self.reading("opened"):
            return Path(self.value).expanduser().resolve()

    def find(self, holds: str) -> Path:
        """Return the absolute path of the folder or file.

        Args:
            holds: what must be there, as errors describe it.

        Raises:
            DataError: it does not exist, or the path is not valid.
        """
        path = self.absolute()
        with self.reading("opened"):
            if self.value and path.exists():
                return path
        raise self.error("missing", f"no such folder or file; it must be {holds}")

    def stamp(self, path: Path) -> tuple[object, ...]:
        """Return `file_stamp(path)`; raises DataError where a file cannot be read."""
        with self.reading():
            return file_stamp(path)

    @contextmanager
    def reading(self, how: str = "read", errors: type[Exception] = Exception) -> Iterator[None]:
        """Turn errors of the libraries that read files, which have no common base class, into a DataError."""
        try:
            yield
        except DataError:
            raise
        except errors as error:
            file = Path(str(getattr(error, "filename", "")))
            name = f"{file.name} " if Path(self.value) in file.parents else ""  # of a folder's files
            raise self.error("unreadable", f"{name}cannot be {how}: {first_line(error)}") from error


def file_stamp(path: Path) -> tuple[object, ...]:
    """Return names, sizes and times of a file, or of all files in a folder: it changes when one of them changes."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return (str(path), *((str(f.relative_to(path)), f.stat().st_size, f.stat().st_mtime_ns) for f in files))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its class where it has no text."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
