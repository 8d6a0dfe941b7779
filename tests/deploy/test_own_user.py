"""Ports on loopback answer the user's own processes only, and tokens are on no command line."""

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedmrn_app.deploy.own_user import user_of
from fedmrn_app.deploy.superexec import COMMAND, start_with_file, write_command
from fedmrn_app.environment import flower_environment
from fedmrn_app.system.processes import free_port

root = pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="becomes another user of Linux")
NOBODY = 65534
SERVE = """
import sys
import uvicorn
from types import SimpleNamespace
from fedmrn_app.deploy.own_user import guard
module = SimpleNamespace(uvicorn=uvicorn)
guard(module)
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"work"})
port = int(sys.argv[1])
if sys.argv[2] == "run":
    module.uvicorn.run(app, host="127.0.0.1", port=port, lifespan="off", log_level="error")
else:
    module.uvicorn.Server(module.uvicorn.Config(app, host="127.0.0.1", port=port, lifespan="off")).run()
"""
ASK = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
link = socket.socket()
try:
    link.connect(("127.0.0.1", int(sys.argv[1])))
    link.sendall(b"GET / HTTP/1.1\\r\\nhost: a\\r\\nconnection: close\\r\\n\\r\\n")
    print(link.recv(100).decode() or "closed")
except OSError as error:
    print(type(error).__name__)
"""


def ask(port: int, user: int = os.geteuid()) -> str:
    """Return what a process of a user that knows the port gets from it."""
    words = [sys.executable, "-IS", "-c", ASK, str(port), str(user)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@root
@pytest.mark.slow
@pytest.mark.parametrize("way", ["run", "server"])
def test_a_port_answers_its_own_user_and_nobody_else(way: str, tmp_path: Path) -> None:
    port = free_port()
    server = subprocess.Popen([sys.executable, "-c", SERVE, str(port), way], stderr=subprocess.DEVNULL)
    try:
        while "200 OK" not in ask(port):
            assert server.poll() is None
            time.sleep(0.1)
        assert ask(port, NOBODY) in ("closed", "ConnectionResetError")
        assert "200 OK" in ask(port)
    finally:
        server.kill()
        server.wait()


@root
@pytest.mark.slow
@pytest.mark.flower
def test_no_other_user_takes_the_work_of_a_supernode(tmp_path: Path) -> None:
    """Another user of the device asked the SuperNode's port for its task, and answered in the device's name."""
    port, link = free_port(), free_port()
    environment = flower_environment(tmp_path)
    superlink = subprocess.Popen(
        [sys.executable, "-P", "-m", "fedmrn_app.deploy.superlink", "--insecure", "--host", "127.0.0.1",
         "--port", str(link), "--isolation", "process", "--disable-runtime-dependency-installation"],
        cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        while "HTTP/1.1" not in ask(link):
            assert superlink.poll() is None
            time.sleep(0.2)
        assert ask(link, NOBODY) in ("closed", "ConnectionResetError")
        node = [sys.executable, "-P", "-m", "fedmrn_app.deploy.supernode", "--insecure", "--isolation", "process"]
        node += ["--superlink", f"127.0.0.1:{link}", "--host", "127.0.0.1", "--port", str(port)]
        quiet = subprocess.DEVNULL
        nodes.append(subprocess.Popen(node, cwd=tmp_path, env=environment, stdout=quiet, stderr=quiet))
        while "HTTP/1.1" not in ask(port):
            assert nodes[0].poll() is None
            time.sleep(0.2)
        assert ask(port, NOBODY) in ("closed", "ConnectionResetError")
    finally:
        for process in (*nodes, superlink):
            process.kill()
            process.wait()


def test_the_user_of_a_connection_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        if not Path("/proc/net/tcp").exists():
            pytest.skip("the system has no list of connections")
        assert user_of(client.getsockname(), client.getpeername()) == os.geteuid()
        assert user_of(client.getsockname(), client.getsockname()) is None


def test_a_token_is_handed_over_in_a_file_of_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    old = tmp_path / "token-old"
    old.write_text("read long ago")
    os.utime(old, (0, 0))
    script = "import sys; from pathlib import Path; print(sys.argv[1:], Path(sys.argv[2]).read_text())"
    process = start_with_file([sys.executable, "-c", script, "--token", "secret", "--insecure"], stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=60)
    (file,) = tmp_path.glob("token-*")
    assert out.decode().strip() == f"{['--token-file', str(file), '--insecure']} secret"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not any("secret" in str(word) for word in process.args[3:])  # type: ignore[index]


@pytest.mark.slow
def test_the_command_in_place_of_flower_s_is_found_by_its_name(tmp_path: Path) -> None:
    write_command(tmp_path)
    done = subprocess.run([tmp_path / COMMAND, "--help"], capture_output=True, text=True, timeout=120, check=False)
    assert "superexec" in done.stdout.lower()
    assert stat.S_IMODE((tmp_path / COMMAND).stat().st_mode) == 0o700
