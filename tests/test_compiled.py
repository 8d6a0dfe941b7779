"""Loops are compiled wherever they can be kept, and where they cannot."""

import pytest
from numba import types
from numba.core import caching

from fedmrn_app.kernels.compiled import compile_loop


def test_compiles_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])

    def double(x: int) -> int:
        return 2 * x

    assert compile_loop(types.int64(types.int64), double)(21) == 42
