"""The command refuses in one line what it finds only when it starts; it leaves nothing behind and starts no process."""

import json
import multiprocessing.process
import os
import shlex
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest

from fedmrn_app.errors import FedMRNError
from fedmrn_app.runtime import cli
from tests.config.catalogue import MODULES, Row, rows, write_modules

SECONDS = 120  # that one command line may take


def be_the_command(line: str, cwd: Path, out: Path) -> None:
    """Run a command line in this process, which ends: a fork of the tests' process."""
    os.chdir(cwd)
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(out / name, os.O_CREAT | os.O_WRONLY), descriptor)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", closefd=False) for descriptor in (1, 2))
    made: list[FedMRNError] = []
    begin = FedMRNError.__init__

    def remember(error: FedMRNError, *arguments: object, **named: object) -> None:
        begin(error, *arguments, **named)  # type: ignore[arg-type]
        made.append(error)

    def start(*_: object, **__: object) -> None:
        raise SystemExit(0)

    FedMRNError.__init__ = remember  # type: ignore[assignment, method-assign]
    subprocess.Popen.__init__ = multiprocessing.process.BaseProcess.start = start  # type: ignore[assignment, method-assign]
    code = 70
    try:
        words = shlex.split(line)
        while words and "=" in words[0] and words[0].partition("=")[0].isupper():
            key, _, value = words.pop(0).partition("=")
            os.environ[key] = value
        sys.argv = ["fedmrn", *words]
        cli.main()
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        texts = [[type(error).__name__, error.code, error.key, " ".join(str(error).split())] for error in made]
        (out / "errors").write_text(json.dumps(texts))
        os._exit(code)


@pytest.mark.slow
@pytest.mark.parametrize("row", rows("start"), ids=lambda row: row.command)
def test_wrong_command_lines_are_refused(row: Row, tmp_path: Path) -> None:
    cwd, out = tmp_path / "cwd", tmp_path / "out"
    cwd.mkdir()
    out.mkdir()
    write_modules(cwd)
    child = os.fork()
    if child == 0:
        be_the_command(row.command, cwd, out)
    deadline = time.monotonic() + SECONDS
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, 9)
        time.sleep(0.02)
    status, text = os.waitstatus_to_exitcode(ended[1]), (out / "err").read_text()
    assert status in (1, 2), text
    assert len(text.splitlines()) == 1, text
    found = [facts for *facts, said in json.loads((out / "errors").read_text()) if text == f"fedmrn: {said}\n"]
    assert (found[-1] if found else ["", "", ""]) == [row.error, row.code, row.key]
    left = {path.name.partition(".")[0] for path in cwd.iterdir()} - {*MODULES, "__pycache__", "data"}
    assert not left


@pytest.mark.slow
@pytest.mark.parametrize("module", ["fedmrn_app.runtime.cli", "fedmrn_app.deploy.cli"])
def test_a_closed_standard_output_is_no_error(module: str) -> None:
    words = ["/bin/sh", "-c", f"exec '{sys.executable}' -c 'import {module}' >&-"]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, "")
