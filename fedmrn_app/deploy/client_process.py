"""Runs one message's ClientApp on a device: the app that is installed there, or one that the device's owner allows.

Flower unpacks the app that the server sends and imports its code. Here the code of this package's app is always the
installed one, and nothing of what the server sends is unpacked or imported. Other apps run only if the device's node
configuration names them in `allow-apps`, each with the SHA-256 of its bundle.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedmrn_app.errors import ConfigError

OWN_APPS = ("fedmrn/fedmrn", "fedmrn/fedmrn-run")  # of a checkout, and of the `fedmrn` command
_MESSAGE_SECONDS = 30.0  # within which the message of a task is there
_POLL_SECONDS = 0.05
_FLOWER = "flwr.supernode.runtime.run_clientapp"


def check_app(app: str, version: str, content: bytes, allowed: str) -> None:
    """Refuse an app that the device's owner does not allow, before any of it is unpacked.

    Args:
        app: publisher and name as the server gives them, such as `acme/train`.
        version: as the server gives it.
        content: the app's bundle (FAB).
        allowed: what the node configuration says in `allow-apps`: PUBLISHER/NAME@SHA256, separated by spaces or commas.

    Raises:
        ConfigError: the app is not allowed, or its bundle belongs to another app.
    """
    word = f"{app}@{sha256(content).hexdigest()}"
    if word not in allowed.replace(",", " ").split():
        reason = f'only the installed app of fedmrn runs here; its owner may set allow-apps="{word}"'
        raise ConfigError(f"app {app!r}: {reason}", code="not-allowed", key="allow-apps", value=word)
    found = importlib.import_module("flwr.cli.config_utils").get_fab_metadata(content)
    if found != (app, version):
        reason = f"its bundle is {found[0]!r} of version {found[1]!r}, not {version!r}"
        raise ConfigError(f"app {app!r}: {reason}", code="other-app", key="allow-apps", value=word)


class _PatientClient:
    """Flower's client of a SuperNode, which waits for the message of its task.

    A SuperNode creates the task first and stores its message a moment later. A fork of the warm process may ask for the
    message in between. Flower's code then ends without a reply, and the message is never processed.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def PullMessages(self, request: object) -> Any:
        """Return Flower's response, as soon as it has the message."""
        deadline = time.monotonic() + _MESSAGE_SECONDS
        while True:
            response = self._client.PullMessages(request)
            if response.messages_list or time.monotonic() > deadline:
                return response
            time.sleep(_POLL_SECONDS)


class Admission:
    """Takes the places of three functions of Flower's `run_clientapp`, so that it asks the device's owner first."""

    def __init__(self) -> None:
        self.flower: Any = importlib.import_module(_FLOWER)
        self._pull: Callable[..., Any] = self.flower.pull_task_input
        self._install: Callable[..., Path] = self.flower.install_from_fab
        self._loader: Callable[..., Callable[..., object]] = self.flower.get_load_client_app_fn
        self._context: Any = None
        self._run: Any = None
        self._fab: Any = None

    def take_place(self) -> None:
        """Replace Flower's functions."""
        self.flower.pull_task_input = self.pull
        self.flower.install_from_fab = self.install
        self.flower.get_load_client_app_fn = self.loader

    def pull(self, client: object) -> Any:
        """Return Flower's message, context, run and bundle, and keep what decides about the app."""
        found = self._pull(_PatientClient(client))
        _, self._context, self._run, self._fab = found
        return found

    def install(self, content: bytes, **options: Any) -> Path:
        """Unpack the bundle of an app that is allowed by name and hash; of this package's app nothing is unpacked.

        Raises:
            ConfigError: the app is not allowed.
        """
        if self._run.fab_id in OWN_APPS:
            return Path()
        allowed = str(self._context.node_config.get("allow-apps", ""))
        check_app(self._run.fab_id, self._run.fab_version, content, allowed)
        self._fab.hash_str = sha256(content).hexdigest()  # names the folder that Flower imports from
        return self._install(content, **options)

    def loader(self, **options: Any) -> Callable[..., object]:
        """Return the function that loads the ClientApp."""
        if self._run.fab_id in OWN_APPS:
            return lambda *_: importlib.import_module("fedmrn_app.client_app").app
        return self._loader(**options)


def run() -> None:
    """Run Flower's command `flwr-clientapp` with the arguments of this process."""
    Admission().take_place()
    importlib.import_module("flwr.supernode.cli.flwr_clientapp").flwr_clientapp()


if __name__ == "__main__":
    run()
