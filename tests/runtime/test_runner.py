"""What the command shows while it works."""

import io

import pytest
from rich.console import Console

from fedmrn_app.runtime import runner


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_shows_that_data_are_read_where_there_is_a_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.StringIO()
    monkeypatch.setattr(runner, "console", Console(file=file, force_terminal=terminal, width=80))
    monkeypatch.setattr(runner, "in_parallel", lambda: False)
    with runner._reading_bar():
        runner.console.print("reading cifar10 once")
    assert ("reading the data" in file.getvalue()) == terminal
    assert "reading cifar10 once" in file.getvalue()
