"""The allocator's settings for training."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # from glibc's <malloc.h>


def keep_freed_memory() -> None:
    """Let glibc keep up to 256 MiB of freed memory, in blocks of up to 32 MiB, for the next training step.

    By default the activations of each step return to the system, which zeroes them page by page for the next step.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, 256 << 20)
        mallopt(_TOP_PAD, 16 << 20)
