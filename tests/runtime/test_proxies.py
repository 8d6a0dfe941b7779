"""A proxy of the network, which cannot reach this machine's own ports, is not asked for them."""

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedmrn_app.environment import flower_environment
from fedmrn_app.runtime.connection import Connection
from fedmrn_app.system.processes import free_port


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Healthy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ["http_proxy", "all_proxy"])
def test_loopback_is_reached_without_the_proxy(name: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    assert Connection("here", f"127.0.0.1:{port}", None, Path()).fault() is None


def test_flower_s_processes_keep_what_is_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "example.org")
    environment = flower_environment(Path("home"))
    assert environment["no_proxy"] == environment["NO_PROXY"] == "example.org,localhost,127.0.0.1,::1"


@pytest.mark.parametrize("name", ["all_proxy", "ALL_PROXY", "https_proxy"])
def test_flower_s_processes_start_with_a_socks_proxy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "socks5://127.0.0.1:9")
    with monkeypatch.context() as patch:
        for key in [key for key in os.environ if key.lower().endswith("_proxy")]:
            patch.delenv(key)
        for key, value in flower_environment(Path("home")).items():
            patch.setenv(key, value)
        httpx.Client().close()  # as Flower makes one, for addresses of this machine
    monkeypatch.setattr("fedmrn_app.environment.find_spec", lambda name: object())
    assert flower_environment(Path("home"))[name] == "socks5://127.0.0.1:9"  # it can be used
