"""Settings without effect are named in one line each, and others are not."""

import platform
import shlex

import pytest
import torch

from fedmrn_app.config.build import precision_remark
from fedmrn_app.config.compose import load_config
from fedmrn_app.config.remarks import remarks
from tests.config.catalogue import rows


@pytest.mark.fast_cases(20)
@pytest.mark.parametrize(("command_line", "keys"), [(row.command, row.key.split()) for row in rows("remark")])
def test_settings_without_effect_are_named(command_line: str, keys: list[str]) -> None:
    words = shlex.split(command_line)
    lines = remarks(load_config(tuple(words)), words, labels=10)
    assert [line.partition("=")[0] for line in lines] == keys
    assert all(" has no effect because " in line for line in lines)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="AVX-512 is of x86 processors")
def test_bfloat16_is_remarked_on_where_the_processor_emulates_it() -> None:
    line = precision_remark(load_config(("precision=bfloat16", "device=cpu")))
    assert (line is None) == (torch.backends.cpu.get_cpu_capability() == "AVX512")
    assert line is None or "precision=float32" in line
    assert precision_remark(load_config(("device=cpu",))) is None
