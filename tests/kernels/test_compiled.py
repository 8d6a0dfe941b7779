"""Loops are compiled wherever they can be kept, and where they cannot."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import types
from numba.core import caching

from fedmrn_app.kernels.compiled import compile_loop


def test_compiles_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])

    def double(x: int) -> int:
        return 2 * x

    assert compile_loop(types.int64(types.int64), double)(21) == 42


LOOPS = (
    "gaussian._compile()",
    "masked_step_cpu._compile_loop(MaskKind(signed=False, deterministic=False))",
    "pruning_cpu._compile_apply()",
    "pruning_cpu._compile_collect()",
    "pruning_cpu._compile_prune()",
    "score_step_cpu._compile_loop()",
)


def test_what_a_process_has_compiled_the_next_one_finds(tmp_path: Path) -> None:
    modules = ", ".join(sorted({loop.partition(".")[0] for loop in LOOPS}))
    code = (
        f"from fedmrn_app.kernels import {modules}; from fedmrn_app.kernels.masking import MaskKind; "
        f"print(*(sum(loop.stats.cache_misses.values()) for loop in ({', '.join(LOOPS)})))"
    )

    def compiled() -> list[str]:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).split()

    assert compiled() == ["1"] * len(LOOPS)
    assert compiled() == ["0"] * len(LOOPS)
