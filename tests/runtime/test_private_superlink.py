"""No other process reaches the SuperLink of a simulation, and the tokens of its processes are on no command line."""

import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fedmrn_app.environment import RUN_FOLDER
from fedmrn_app.runtime.flower_cli import free_port
from fedmrn_app.runtime.own_network import user_of
from tests.runtime.command import FEDMRN, environments, finish, start, wait_for_rounds

ENTER = "from fedmrn_app.runtime.own_network import enter_own_network; enter_own_network()"
OWN_NETWORKS = subprocess.run([sys.executable, "-c", ENTER], check=False, capture_output=True).returncode == 0
own_networks = pytest.mark.skipif(not OWN_NETWORKS, reason="the system allows no network of its own")
root = pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="becomes another user of Linux")
NOBODY = 65534
ASK = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
link = socket.socket()
try:
    link.connect(("127.0.0.1", int(sys.argv[1])))
    link.sendall(b"GET /health HTTP/1.1\\r\\nhost: a\\r\\nconnection: close\\r\\n\\r\\n")
    print(link.recv(100).decode() or "closed")
except OSError as error:
    print(error)
"""
GUARDED = (sys.executable, "-m", "fedmrn_app.runtime.private_superlink", "guarded", "--insecure", "--simulation")


def ask(port: int, *before: str, user: int = os.geteuid()) -> str:
    """Return what a process that knows the port gets from the SuperLink."""
    words = [*before, sys.executable, "-c", ASK, str(port), str(user)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout.strip()


def command_line(folder: Path, name: str) -> tuple[psutil.Process, list[str]]:
    """Return a process of a run, and its command line."""
    for process in environments(RUN_FOLDER, str(folder)):
        words = process.cmdline()
        if any(Path(word).name == name for word in words):
            return process, words
    raise AssertionError(name)


@own_networks
@pytest.mark.slow
@pytest.mark.flower
def test_other_processes_do_not_reach_the_superlink_of_a_simulation(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = start((*FEDMRN, f"hydra.run.dir={folder}", "rounds=5000", "local.steps=1"), tmp_path)
    try:
        wait_for_rounds(folder, 1, run)
        superlink, words = command_line(folder, "flower-superlink")
        port = int(words[words.index("--port") + 1])
        assert "Connection refused" in ask(port)
        if os.geteuid() == 0:  # who may enter the run's network reaches it
            assert ask(port, "nsenter", "-t", str(superlink.pid), "-n").split()[1] == "200"
        _, words = command_line(folder, "flwr-simulation")
        assert "--token" not in words
        file = Path(words[words.index("--token-file") + 1])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        token = file.read_text()
        assert len(token) >= 32
        assert not any(token in word for each in environments(RUN_FOLDER, str(folder)) for word in each.cmdline())
    finally:
        run.terminate()
        run.communicate()
    assert "SuperLink" not in (folder / "run.log").read_text()


@root
@pytest.mark.flower
def test_without_a_network_of_its_own_the_superlink_answers_its_user_only(tmp_path: Path) -> None:
    port = free_port()
    with (tmp_path / "log").open("wb") as log:
        words = [*GUARDED, "--isolation", "process", "--host", "127.0.0.1", "--port", str(port)]
        superlink = subprocess.Popen(words, stdout=log, stderr=log, cwd=tmp_path)
    try:
        while "HTTP/1.1 200" not in ask(port):
            assert superlink.poll() is None, (tmp_path / "log").read_text()
        assert re.search("reset|closed", ask(port, user=NOBODY))
        assert ask(port).split()[1] == "200"
    finally:
        superlink.kill()
        superlink.wait()


@pytest.mark.flower
@pytest.mark.slow
def test_run_in_the_machine_s_network_says_who_reaches_it(tmp_path: Path) -> None:
    settings = ("hydra.run.dir=run", "rounds=1", "local.steps=1", "simulation.own_network=false")
    run = finish((*FEDMRN, *settings), tmp_path)
    assert run.returncode == 0
    lines = [line for line in run.stdout.splitlines() if "SuperLink" in line]
    assert len(lines) == 1
    assert lines[0].startswith("simulation.own_network=false: other processes of your user reach its SuperLink")


def test_user_of_a_connection_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        if not Path("/proc/net/tcp").exists():
            pytest.skip("the system has no list of connections")
        assert user_of(client.getsockname(), client.getpeername()) == os.geteuid()
        assert user_of(client.getsockname(), client.getsockname()) is None
