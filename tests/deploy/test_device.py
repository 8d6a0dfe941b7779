"""A device ends when its SuperNode no longer works, and runs no code that the server sends."""

import importlib
import inspect
import io
import re
import shutil
import ssl
import subprocess
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse

from fedmrn_app.deploy.client_process import OWN_APPS, Admission, check_app
from fedmrn_app.deploy.folder import Federation, create
from fedmrn_app.deploy.fork_server import CLIENT_APP, SOCKET, write_commands
from fedmrn_app.deploy.supernode import send_ready_replies
from fedmrn_app.errors import ConfigError
from fedmrn_app.system.processes import free_port
from tests.runtime.command import DEPLOY, finish, start

ANSWERS: dict[str, Any] = {
    "activate-node": ActivateNodeResponse(node_id=7),
    "pull-messages": PullMessagesResponse(),
    "send-node-heartbeat": SendNodeHeartbeatResponse(success=True),
}


@contextmanager
def failing_server(federation: Federation, fails: str) -> Iterator[None]:
    """A server of a federation that lets devices in and answers one request with HTTP 500."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            asked = self.path.rpartition("/")[2]
            body = ANSWERS[asked].SerializeToString() if asked in ANSWERS else b""
            self.send_response(500 if asked == fails else 200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", federation.port), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(federation.certificate, federation.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["pull-messages", "send-node-heartbeat"])
def test_device_ends_when_its_supernode_has_gone_deaf(fails: str, tmp_path: Path) -> None:
    federation = create(tmp_path / "fed", ["127.0.0.1"], 1, port=free_port(), control_port=free_port())
    with failing_server(federation, fails):
        done = finish((*DEPLOY, "device", "--run", "--cold", str(federation.bundle("device-0"))), tmp_path)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith("fedmrn-deploy: device-0: the SuperNode has stopped: ")
    assert "500 Internal Server Error" in line


@pytest.mark.slow
def test_device_ends_when_its_superexec_has_died(tmp_path: Path) -> None:
    federation = create(tmp_path / "fed", ["127.0.0.1"], 1, port=free_port(), control_port=free_port())
    words = (*DEPLOY, "device", "--run", "--cold", str(federation.bundle("device-0")))
    with failing_server(federation, "nothing"):
        device = start(words, tmp_path)
        killed = list[psutil.Process]()
        while not killed:
            assert device.poll() is None
            for child in psutil.Process(device.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if any(Path(word).name == "flower-superexec" for word in child.cmdline()):
                        time.sleep(10)  # until the device has seen it
                        child.kill()
                        killed.append(child)
        _, errors = device.communicate(timeout=120)
    assert device.returncode == 1
    assert errors.splitlines()[-1].startswith("fedmrn-deploy: device-0: the SuperNode has lost its SuperExec")


@pytest.mark.slow
def test_a_killed_device_leaves_no_supernode(tmp_path: Path) -> None:
    federation = create(tmp_path / "fed", ["127.0.0.1"], 1, port=free_port(), control_port=free_port())
    with failing_server(federation, "nothing"):
        device = start((*DEPLOY, "device", "--run", "--cold", str(federation.bundle("device-0"))), tmp_path)
        assert device.stdout is not None
        assert any("SuperNode ID" in line for line in device.stdout)
        kill_and_wait(device)


@pytest.mark.slow
def test_a_killed_server_leaves_neither_superlink_nor_gate(tmp_path: Path) -> None:
    federation = create(tmp_path / "fed", ["127.0.0.1"], 1, port=free_port(), control_port=free_port())
    server = start((*DEPLOY, "server", "--run", "--listen", "127.0.0.1", str(federation.path)), tmp_path)
    assert server.stdout is not None
    assert any("serving 1 devices" in line for line in server.stdout)
    kill_and_wait(server)


def kill_and_wait(process: subprocess.Popen[str]) -> None:
    """Kill a command, and wait until everything that it has started has ended by itself."""
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    process.kill()
    process.wait()
    _, running = psutil.wait_procs(family, timeout=15)
    for one in running:
        one.kill()
    assert running == []


@pytest.mark.slow
def test_the_supernode_starts_when_the_warm_process_takes_requests(tmp_path: Path) -> None:
    federation = create(tmp_path / "fed", ["127.0.0.1"], 1, port=free_port(), control_port=free_port())
    with failing_server(federation, "nothing"):
        device = start((*DEPLOY, "device", "--run", str(federation.bundle("device-0"))), tmp_path)
        started: dict[str, list[str]] = {}
        while "fedmrn_app.deploy.supernode" not in started:
            assert device.poll() is None
            with suppress(psutil.Error):
                for words in (child.cmdline() for child in psutil.Process(device.pid).children()):
                    started |= {words[words.index("-m") + 1]: words} if "-m" in words else {}
        assert Path(started["fedmrn_app.deploy.fork_server"][-1], SOCKET).exists()
        device.terminate()
        device.communicate(timeout=120)


def test_a_client_app_waits_for_the_message_that_its_supernode_has_not_kept_yet() -> None:
    """Before, it ended without an answer, and the device was silent until it was asked again."""
    responses = [SimpleNamespace(messages_list=messages) for messages in ([], [], ["message"], [])]
    client = SimpleNamespace(PullMessages=lambda request: responses.pop(0), other=7)
    admission = Admission()
    admission._pull = lambda patient: (patient.PullMessages("request"), patient.other, None, None)
    response, other, *_ = admission.pull(client)
    assert response.messages_list == ["message"]
    assert other == 7
    assert len(responses) == 1


def test_a_supernode_sends_a_reply_that_is_ready_where_no_message_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it was one reply behind for ever after a run had ended while a message of it was received."""
    loop = importlib.import_module("flwr.supernode.start_client_internal")
    names = inspect.signature(loop._pull_and_store_message).parameters
    monkeypatch.setattr(loop, "_pull_and_store_message", loop._pull_and_store_message)  # puts it back afterwards
    send_ready_replies()
    state = importlib.import_module("flwr.supernode.nodestate.in_memory_nodestate").InMemoryNodeState(None)
    message, reply = (
        SimpleNamespace(metadata=SimpleNamespace(message_id=name, run_id=1, reply_to_message_id=to))
        for name, to in (("query", ""), ("reply", "query"))
    )

    def waits_for_a_message() -> bool:
        options = {**dict.fromkeys(names), "state": state, "receive": lambda: None}
        return loop._pull_and_store_message(**options) is None

    assert waits_for_a_message()
    state.store_message(message)
    assert waits_for_a_message()
    state.store_message(reply)
    assert not waits_for_a_message()
    assert len(state.get_messages_legacy(is_reply=True)) == 1  # as the loop does before it sends
    assert waits_for_a_message()


def bundle(name: str = "acme", code: str = "") -> bytes:
    """A Flower App Bundle with one module."""
    stream = io.BytesIO()
    pyproject = (
        f'[project]\nname = "train"\nversion = "1.0.0"\n[tool.flwr.app]\npublisher = "{name}"\n'
        '[tool.flwr.app.components]\nserverapp = "evil:app"\nclientapp = "evil:app"\n'
    )
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("pyproject.toml", pyproject)
        archive.writestr("evil.py", code)
    return stream.getvalue()


def admission(app: str, content: bytes, allowed: str = "", version: str = "1.0.0") -> Admission:
    """What a device decides about an app that its SuperNode hands over; see `Admission.pull`."""
    admission = Admission()
    admission._context = SimpleNamespace(node_config={"allow-apps": allowed} if allowed else {})
    admission._run = SimpleNamespace(fab_id=app, fab_version=version)
    admission._fab = SimpleNamespace(hash_str="0" * 64, content=content)
    return admission


def test_app_of_another_publisher_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    content = bundle()
    with pytest.raises(ConfigError, match=re.escape(f'allow-apps="acme/train@{sha256(content).hexdigest()}"')):
        admission("acme/train", content).install(content, skip_prompt=True)
    with pytest.raises(ConfigError, match="only the installed app"):
        admission("acme/train", content, f"acme/train@{'0' * 64}").install(content)
    assert not list(tmp_path.iterdir())


def test_own_app_is_the_installed_one_whatever_the_server_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedmrn_app.client_app import app

    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    for name in OWN_APPS:
        decides = admission(name, b"no bundle at all")
        decides.install(b"no bundle at all", skip_prompt=True)
        assert decides.loader(default_app_ref="", app_path=None, multi_app=True)(name, "1", "0") is app
    assert not list(tmp_path.iterdir())


def test_app_with_its_hash_is_allowed_under_its_own_name_only() -> None:
    content = bundle()
    word = f"acme/train@{sha256(content).hexdigest()}"
    check_app("acme/train", "1.0.0", content, f"acme/other@1, {word}")
    for app, version in (("acme/train", "../../evil"), ("acme/train", "1.0.1")):
        with pytest.raises(ConfigError, match=r"its bundle is 'acme/train' of version '1\.0\.0'"):
            check_app(app, version, content, word)
    with pytest.raises(ConfigError, match="its bundle is 'acme/train'"):
        check_app("fake/train", "1.0.0", content, f"fake/train@{sha256(content).hexdigest()}")


def test_tasks_other_than_clients_are_refused(tmp_path: Path) -> None:
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    write_commands(tmp_path)
    for name in set(TASK_TYPE_TO_COMMAND.values()) - {CLIENT_APP}:
        found = shutil.which(name, path=str(tmp_path))
        assert found is not None
        done = subprocess.run([found, "--token", "a"], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr == f"{name}: refused; a device runs ClientApps only\n"


def test_admission_stands_where_flower_unpacks_and_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = Admission()
    for name in ("pull_task_input", "install_from_fab", "get_load_client_app_fn"):
        assert name in admission.flower.run_clientapp.__code__.co_names
        monkeypatch.setattr(admission.flower, name, getattr(admission.flower, name))  # is put back after the test
    admission.take_place()
    assert admission.flower.install_from_fab == admission.install
