"""Hydra's options are accepted by versions of Python that check the help of each option when it is added."""

import argparse
from typing import Any

import pytest
from hydra._internal.utils import get_args_parser

from fedmrn_app.runtime.cli import late_help


def check_help(parser: argparse.ArgumentParser, action: argparse.Action) -> None:
    if action.help and "%" in action.help:  # a TypeError if it is no string
        raise ValueError("badly formed help string")


def test_help_that_is_made_late_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    add = argparse.ArgumentParser._add_action

    def check_and_add(parser: Any, action: Any) -> Any:  # as Python 3.14 does
        parser._check_help(action)
        return add(parser, action)

    monkeypatch.setattr(argparse.ArgumentParser, "_check_help", check_help, raising=False)
    monkeypatch.setattr(argparse.ArgumentParser, "_add_action", check_and_add)
    with pytest.raises(TypeError, match="LazyCompletionHelp"):
        get_args_parser()
    with late_help():
        assert "--shell-completion" in get_args_parser().format_usage()
        with pytest.raises(ValueError, match="badly formed"):
            argparse.ArgumentParser().add_argument("--share", help="in %")
    with pytest.raises(TypeError, match="LazyCompletionHelp"):
        get_args_parser()
