"""No proxy is used for this machine, and those for others stay."""

import subprocess
from importlib.metadata import version

import pytest

from fedmrn_app.environment import is_loopback, without_own_proxies
from tests.runtime.command import DEPLOY, FEDMRN


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        *((host, True) for host in ("127.0.0.1:9092", "127.8.0.1:1", "localhost:9092", "[::1]:9092")),
        *((host, False) for host in ("10.0.0.1:9092", "localhost.example:1")),
    ],
)
def test_loopback_is_this_machine(address: str, expected: bool) -> None:
    assert is_loopback(address) == expected


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_exceptions_from_proxies_are_added_to(name: str) -> None:
    found = without_own_proxies({name: "intra.example,127.0.0.1", "http_proxy": "http://proxy:3128"})
    assert found["no_proxy"] == found["NO_PROXY"] == "intra.example,127.0.0.1,localhost,::1"
    assert found["http_proxy"] == "http://proxy:3128"


@pytest.mark.parametrize("command", [FEDMRN, DEPLOY], ids=["fedmrn", "fedmrn-deploy"])
def test_a_command_tells_its_version_and_not_that_of_hydra(command: tuple[str, ...]) -> None:
    done = subprocess.run((*command, "--version"), capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"fedmrn {version('fedmrn')}, Flower {version('flwr')}")
    assert "Hydra" not in done.stdout
