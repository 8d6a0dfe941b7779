"""NumPy's linear algebra in one thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock

from threadpoolctl import ThreadpoolController

_LOCK = Lock()  # the number of threads belongs to the process


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let NumPy's linear algebra use one thread within the context.

    The last bits of a product then do not depend on the number of threads. Matrices of a few hundred rows are also
    faster, because threads wait for each other longer than they compute where other processes use the cores.
    """
    with _LOCK, _controller().limit(limits=1, user_api="blas"):
        yield


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()
