"""Ready services for both sides: systemd units, and compose files with the image that both are run from."""

from __future__ import annotations

import getpass
import sys
from importlib.metadata import version
from pathlib import Path

from fedmrn_app.deploy.folder import Federation
from fedmrn_app.runtime.flower_cli import command

# a device that is restarted is refused until the SuperLink has missed its heartbeats, so tries never end
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
_REQUIRED = ("fedmrn", "flwr", "torch", "torchvision", "numpy", "numba", "hydra-core", "safetensors", "constriction")


def requirements() -> str:
    """The versions of this environment on which weights and protocol depend: the same on all machines."""
    return "".join(f"{name}=={version(name).partition('+')[0]}\n" for name in _REQUIRED)


def write_server_services(federation: Federation) -> list[Path]:
    """Write the server's unit and compose file below its folder, and return what was written."""
    folder = federation.path / "server"
    words = f"{command('fedmrn-deploy')} server {federation.path} --run"
    inside = f'["server", "{federation.path}", "--run"]'
    return _write(folder, "fedmrn-server", "fedmrn server", words, federation.path, inside, str(federation.path))


def write_device_services(federation: Federation, name: str) -> list[Path]:
    """Write a device's unit and compose file into its bundle, and return what was written."""
    bundle = federation.bundle(name)
    place = Path("/opt/fedmrn") / name
    words = f"{place.parent}/venv/bin/fedmrn-deploy device {place} --run"
    return _write(
        bundle, "fedmrn-device", f"fedmrn {name}", words, place, '["device", "/device", "--run"]', "/device", "fedmrn"
    )


def _write(
    folder: Path, name: str, description: str, words: str, place: Path, inside: str, mount: str, user: str | None = None
) -> list[Path]:
    folder.mkdir(exist_ok=True)
    user = user or getpass.getuser()
    files = {
        f"{name}.service": _UNIT.format(name=name, description=description, user=user, folder=place, words=words),
        "compose.yaml": _COMPOSE.format(
            service=name,
            version=version("fedmrn"),
            words=inside,
            user="${UID:-1000}:${GID:-1000}",
            folder=place,
            inside=mount,
        ),
        "Dockerfile": _IMAGE.format(python=".".join(map(str, sys.version_info[:2]))),
        "requirements.txt": requirements(),
    }
    for file, text in files.items():
        (folder / file).write_text(text)
    return [folder / file for file in files]
