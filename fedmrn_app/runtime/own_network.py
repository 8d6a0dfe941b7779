"""Networks of their own for the processes of a run, which no other process of the machine reaches.

A network namespace of Linux has a loopback address of its own. A user who is not root enters one together with a user
namespace, in which the user stays the same; some systems and containers do not allow that.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from pathlib import Path

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER and CLONE_NEWNET of <linux/sched.h>
_SET_FLAGS, _UP = 0x8914, 1  # SIOCSIFFLAGS of <linux/sockios.h>, IFF_UP of <linux/if.h>


def enter_own_network() -> None:
    """Move this process, which must have a single thread, into a network with a loopback address and nothing else.

    Raises:
        OSError: the system has no such networks, or does not allow this user to make one.
    """
    if sys.platform != "linux":
        raise OSError(0, "only Linux has them")
    user, group = os.geteuid(), os.getegid()
    try:
        _unshare(_NEW_NETWORK)
    except PermissionError:
        _unshare(_NEW_USER | _NEW_NETWORK)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _start_loopback()


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _start_loopback() -> None:
    import fcntl  # only Unix has it

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sH22x", b"lo", _UP))


def user_of(address: tuple[str, int], peer: tuple[str, int]) -> int | None:
    """Return the user whose process has an open TCP connection from an IPv4 address of this machine; None if unknown.

    Args:
        address: of the connection's end that is asked for.
        peer: of its other end.

    Raises:
        OSError: the system has no list of connections.
    """
    wanted = [_written(address), _written(peer)]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[1:3] == wanted:
            return int(words[7])
    return None


def _written(address: tuple[str, int]) -> str:
    host, port = address
    number = int.from_bytes(socket.inet_aton(host), sys.byteorder)
    return f"{number:08X}:{port:04X}"
