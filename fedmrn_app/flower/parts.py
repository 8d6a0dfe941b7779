"""Objects on their way between two processes: a pickle, and beside it the long strings of bytes that it holds.

    object --pack--> [pickle, bytes, bytes, ...] --send--> socket --receive--> [pickle, bytes, ...] --unpack--> object

A model in a message of Flower is one string of bytes. It is written from where it is, and read to where it stays, so
that it is copied into the system and out of it, and not also into a pickle and out of that on either side.
"""

from __future__ import annotations

import copyreg
import gc
import io
import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

Parts = Sequence[bytes]

_LONG = 1 << 16  # bytes that are not copied into the pickle
_NUMBER = struct.Struct("<Q")
_MOST = 1 << 30  # bytes that are read at a time; the system returns at most 2 GiB
_LARGE = 1 << 27  # bytes of messages that are worth a tenth of a second


def pack(value: object) -> Parts:
    """Return an object in parts: the pickle first, then the strings of bytes that were left out of it."""
    file, parts = io.BytesIO(), [b""]
    _Pickler(file, parts).dump(value)
    parts[0] = file.getvalue()
    return parts


def unpack(parts: Parts) -> Any:
    """Return the object of `pack`, whose long strings of bytes are those of the parts."""
    return _Unpickler(io.BytesIO(parts[0]), parts).load()


def send(connection: socket.socket, parts: Parts) -> None:
    """Write parts to a socket.

    Raises:
        OSError: the other side has closed it.
    """
    lengths = [len(parts), *map(len, parts)]
    connection.sendall(b"".join(map(_NUMBER.pack, lengths)))
    for part in parts:
        connection.sendall(part)


def receive(connection: socket.socket) -> Parts:
    """Return the parts that the other side writes next.

    Raises:
        EOFError, OSError: the other side has closed the socket.
    """
    (count,) = _NUMBER.unpack(_read(connection, _NUMBER.size))
    lengths = [_NUMBER.unpack(_read(connection, _NUMBER.size))[0] for _ in range(count)]
    return [_read(connection, length) for length in lengths]


def free_messages(size: int) -> None:
    """Free messages to which nothing refers any more, where they are large.

    The records of Flower's messages refer to themselves, so that their arrays stay in memory until the collector runs,
    which may be rounds later.

    Args:
        size: about how many bytes the messages have.
    """
    if size >= _LARGE:
        gc.collect()


def _read(connection: socket.socket, length: int) -> bytes:
    pieces, left = [], length
    while left:
        piece = connection.recv(min(left, _MOST), socket.MSG_WAITALL)  # into the memory that it returns
        if not piece:
            raise EOFError("the other process has closed its socket")
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _Pickler(pickle.Pickler):
    """Leaves long strings of bytes out, and writes memory views too, which Flower's arrays may hold."""

    dispatch_table = copyreg.dispatch_table | {memoryview: lambda view: (memoryview, (bytes(view),))}

    def __init__(self, file: io.BytesIO, parts: list[bytes]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._parts = parts
        self._places: dict[int, int] = {}  # by the identity of the bytes, which `_parts` keeps alive

    def persistent_id(self, value: Any) -> int | None:
        """Return the place of a long string of bytes among the parts; None for all else."""
        if type(value) is not bytes or len(value) < _LONG:
            return None
        if id(value) not in self._places:
            self._places[id(value)] = len(self._parts)
            self._parts.append(value)
        return self._places[id(value)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, parts: Parts) -> None:
        super().__init__(file)
        self._parts = parts

    def persistent_load(self, place: int) -> bytes:
        """Return a string of bytes that was left out."""
        return self._parts[place]
