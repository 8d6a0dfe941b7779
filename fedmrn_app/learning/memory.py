"""How this process keeps the memory that a training step frees for the next step."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of glibc's <malloc.h>


def keep_freed_memory() -> None:
    """Let glibc keep up to 256 MiB of freed memory, in blocks of up to 32 MiB.

    By default the activations of each step go back to the system and are zeroed page by page for the next one. Other
    systems' allocators keep theirs.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, 256 << 20)
        mallopt(_TOP_PAD, 16 << 20)
