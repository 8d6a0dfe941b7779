"""Writes the services of server and devices: systemd units, and compose files with their common image."""

from __future__ import annotations

import getpass
import json
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from fedmrn_app.deploy.folder import Federation
from fedmrn_app.runtime.flower_cli import command

# the SuperLink refuses a restarted device until it has missed its heartbeats, so the service restarts without limit
_UNIT = """\
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
User={user}
WorkingDirectory={folder}
ExecStart={words}
Restart=on-failure
RestartSec=20
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
# the journal keeps and rotates what the service writes: journalctl -u {name}

[Install]
WantedBy=multi-user.target
"""

_COMPOSE = """\
services:
  {service}:
    build: {{context: ., dockerfile: Dockerfile}}
    image: fedmrn:{version}
    command: {words}
    user: "{user}"
    init: true
    restart: on-failure
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    network_mode: host
    environment: {{FEDMRN_CACHE: /tmp/cache, NUMBA_CACHE_DIR: /tmp/numba, HOME: /tmp}}
    volumes: ["{folder}:{inside}"]
    logging:
      driver: json-file
      options: {{max-size: 10m, max-file: "5"}}
"""

_IMAGE = """\
FROM python:{python}-slim
# without libraries for GPUs: --build-arg PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG PIP_EXTRA_INDEX_URL
COPY wheels/ /wheels/
COPY requirements.txt /
RUN pip install --no-cache-dir --find-links /wheels -r /requirements.txt
ENTRYPOINT ["fedmrn-deploy"]
"""
_DEVICES = Path("/opt/fedmrn")  # on a device: its virtual environment and its bundle
# the versions on which weights and protocol depend are the same on all machines
_REQUIRED = ("fedmrn", "flwr", "torch", "torchvision", "numpy", "numba", "hydra-core", "safetensors", "constriction")


@dataclass(frozen=True, kw_only=True)
class _Service:
    """One service, in the forms of systemd and of Docker Compose.

    Attributes:
        name: of the unit and of the container.
        description: of the unit.
        user: that the unit runs as.
        place: the folder of the service on its machine.
        mount: that folder inside the container.
        words: of `fedmrn-deploy`; `{folder}` stands for the folder.
        command: path of `fedmrn-deploy` on the service's machine.
    """

    name: str
    description: str
    user: str
    place: Path
    mount: str
    words: tuple[str, ...]
    command: str

    def write(self, folder: Path) -> list[Path]:
        """Write unit, compose file, Dockerfile and requirements into a folder, and return the files."""
        outside, inside = ([word.format(folder=place) for word in self.words] for place in (self.place, self.mount))
        unit = {"name": self.name, "description": self.description, "user": self.user, "folder": self.place}
        compose = {"service": self.name, "folder": self.place, "inside": self.mount, "words": json.dumps(inside)}
        texts = {
            f"{self.name}.service": _UNIT.format(**unit, words=" ".join([self.command, *outside])),
            "compose.yaml": _COMPOSE.format(**compose, user="${UID:-1000}:${GID:-1000}", version=version("fedmrn")),
            "Dockerfile": _IMAGE.format(python=".".join(map(str, sys.version_info[:2]))),
            "requirements.txt": "".join(f"{name}=={version(name).partition('+')[0]}\n" for name in _REQUIRED),
        }
        folder.mkdir(exist_ok=True)
        for file, text in texts.items():
            (folder / file).write_text(text)
        return [folder / file for file in texts]


def write_server_services(federation: Federation) -> list[Path]:
    """Write the server's unit and compose file below the federation's folder, and return the files."""
    service = _Service(
        name="fedmrn-server",
        description="fedmrn server",
        user=getpass.getuser(),
        place=federation.path,
        mount=str(federation.path),
        words=("server", "{folder}", "--run"),
        command=command("fedmrn-deploy"),
    )
    return service.write(federation.path / "server")


def write_device_services(federation: Federation, name: str) -> list[Path]:
    """Write a device's unit and compose file into its bundle, and return the files."""
    service = _Service(
        name="fedmrn-device",
        description=f"fedmrn {name}",
        user="fedmrn",
        place=_DEVICES / name,
        mount="/device",
        words=("device", "{folder}", "--run"),
        command=f"{_DEVICES}/venv/bin/fedmrn-deploy",
    )
    return service.write(federation.bundle(name))
