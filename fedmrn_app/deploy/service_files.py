"""Writes the services of server and devices: systemd units, and compose files with their common image."""

from __future__ import annotations

import getpass
import json
import re
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedmrn_app.deploy.folder import Federation
from fedmrn_app.system.processes import command

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
LimitNOFILE=65536
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
    image: fedmrn-{extra}:{version}
    command: {words}
    user: "{user}"
    init: true
    restart: on-failure
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    ulimits: {{nofile: 65536}}
    network_mode: host
    environment: {{FEDMRN_CACHE: /tmp/cache, NUMBA_CACHE_DIR: /tmp/numba, HOME: /tmp}}
    volumes: [{volume}]
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
_REQUIRED = ("flwr", "torch", "numpy", "numba", "hydra-core", "safetensors")


def write_server_services(federation: Federation) -> list[Path]:
    """Write the server's unit and compose file below the federation's folder, and return the files."""
    return _write(
        federation.path / "server",
        unit={"name": "fedmrn-server", "description": "fedmrn server", "user": getpass.getuser()},
        extra="server",
        words=[command("fedmrn-deploy"), "server", str(federation.path), "--run"],
        place=federation.path,
        mount=str(federation.path),
    )


def write_device_services(federation: Federation, name: str) -> list[Path]:
    """Write a device's unit and compose file into its bundle, and return the files."""
    return _write(
        federation.bundle(name),
        unit={"name": "fedmrn-device", "description": f"fedmrn {name}", "user": "fedmrn"},
        extra="device",
        words=[f"{_DEVICES}/venv/bin/fedmrn-deploy", "device", str(_DEVICES / name), "--run"],
        place=_DEVICES / name,
        mount="/device",
    )


def quoted(word: str) -> str:
    """Return a word of a command as it stands in a systemd unit, where %, $, quotes and spaces have a meaning."""
    if re.fullmatch(r"[\w./:=@+-]+", word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def _write(folder: Path, *, unit: dict[str, str], extra: str, words: list[str], place: Path, mount: str) -> list[Path]:
    """Write all files of a service into a folder and return them.

    Args:
        folder: to write into.
        unit: name, description and user of the systemd unit.
        extra: the extra of this package that the image installs.
        words: the command on the service's machine.
        place: the service's folder on its machine.
        mount: that folder inside the container.
    """
    required = [f"fedmrn[{extra}]=={version('fedmrn')}"]
    required += [f"{name}=={version(name).partition('+')[0]}" for name in _REQUIRED]
    inside = [mount if word == str(place) else word for word in words[1:]]
    texts = {
        f"{unit['name']}.service": _UNIT.format(
            **unit, folder=str(place).replace("%", "%%"), words=" ".join(map(quoted, words))
        ),
        "compose.yaml": _COMPOSE.format(
            service=unit["name"],
            extra=extra,
            version=version("fedmrn"),
            words=json.dumps(inside).replace("$", "$$"),
            user="${UID:-1000}:${GID:-1000}",
            volume=json.dumps(f"{place}:{mount}").replace("$", "$$"),
        ),
        "Dockerfile": _IMAGE.format(python=".".join(map(str, sys.version_info[:2]))),
        "requirements.txt": "".join(f"{line}\n" for line in required),
    }
    folder.mkdir(exist_ok=True)
    for file, text in texts.items():
        (folder / file).write_text(text)
    return [folder / file for file in texts]


def stale_pins(folder: Path) -> list[str]:
    """Return the packages that the image of a service has in another version than is installed here, with both."""
    found = []
    with suppress(OSError):
        for line in (folder / "requirements.txt").read_text().splitlines():
            name, _, pinned = line.partition("==")
            package = name.partition("[")[0]
            with suppress(PackageNotFoundError):
                if (here := version(package).partition("+")[0]) != pinned.partition("+")[0]:
                    found.append(f"{package} {pinned}, and {here} is installed here")
    return found
