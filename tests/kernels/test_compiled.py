"""Loops are compiled with and without a disk cache, and each process finds what another one has compiled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import types
from numba.core import caching

from fedmrn_app.kernels.compiled import compile_loop, compiled_at_first_call


def test_compiles_without_a_writable_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    signature = types.int64(types.int64)

    def double(x: int) -> int:
        return 2 * x

    assert compile_loop(signature, double)(21) == 42
    assert compiled_at_first_call(signature)(double)(21) == 42


@pytest.mark.slow
def test_other_processes_find_compiled_loops_and_tell_closures_apart(tmp_path: Path) -> None:
    """One process compiles two kinds of masks; the next one loads them and compiles the other two."""

    def misses(kinds: str) -> list[str]:
        code = (
            "from tests.kernels.test_masked_step import *\n"
            "from fedmrn_app.kernels.masked_step_cpu import _compile_loop\n"
            f"for kind in {kinds}:\n"
            "    print(sum(_compile_loop(kind).stats.cache_misses.values()))\n"
            "    check_equals_plain(masked_step, [kind], 1003)\n"
        )
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).split()

    assert misses("KINDS[::2]") == ["1", "1"]
    assert misses("KINDS") == ["0", "1", "0", "1"]
