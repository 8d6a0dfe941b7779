"""Make an arm64 userland with this package's dependencies, run commands in it under emulation, and check it.

Usage: python -m scripts.tools.arm64 make FOLDER [--mirror URL] [--suite NAME] [--index URL] [--with REQUIREMENT ...]
       python -m scripts.tools.arm64 run FOLDER COMMAND...
       python -m scripts.tools.arm64 check FOLDER [--payloads]
       python -m scripts.tools.arm64 round FOLDER [--within SHARE] [OVERRIDE ...]

It needs Debian's apt and dpkg, `unshare`, `uv`, `qemu-aarch64-static`, and no rights: the userland is entered in a user
namespace, which shares the network and /tmp with the host. Where the host has not registered the emulator, the kernel
must allow it in a namespace (Linux 6.7 and later). `check` runs the tests of vectors, noise, coders and kernels there,
writes a payload of each method there and here, and compares bytes and decoded vectors; with `--payloads` it only
compares. It fails if a test fails, or if a payload of a method that trains as FedAvg does is read as a vector whose
elements differ by more than 1e-4 of the largest.

`round` trains one round, or what the overrides say, on a federation of two devices with TLS and keys: a SuperLink and
the first device run on the host, the second device in the userland. It then trains the same in a simulation on the
host, and prints how the weights of the two differ. It fails if they differ by more than the given share of the largest
weight. After one local step they differ by less than 1e-6 of it; after more steps the order of a sum decides a close
comparison in max-pool or ReLU.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from fedmrn_app.deploy.folder import Federation
from fedmrn_app.deploy.local_trial import run_trial
from fedmrn_app.deploy.service_files import write_device_services
from fedmrn_app.methods.method import LocalTraining
from fedmrn_app.results.checkpoint import read_state
from fedmrn_app.system.processes import command, start
from tests.payloads import NAMES, build, make, read

ROOT = Path(__file__).resolve().parents[2]
QEMU = "/usr/bin/qemu-aarch64-static"
# as in a Raspberry Pi 5; the emulator's default has SME, with which OpenBLAS warns of overflows that are none
CPU = "cortex-a76"
DEBS = ["base-files", "bash", "coreutils", "dash", "libgomp1", "libstdc++6", "python3"]
WHEELS = ["pytest", "hypothesis"]
TESTS = ["tests/wire/test_vectors.py", "tests/wire/test_entropy.py", "tests/test_noise.py", "tests/kernels"]
ADDOPTS = ["-o", "addopts=-m 'not slow and not long'"]  # without xdist, which is not installed
PAYLOADS = "opt/payloads"
ROUND = ("clients=2", "clients_per_round=2", "client_weights=equal", "rounds=1")
PATIENT = ("node_timeout=3000", "round_timeout=3000")  # seconds; emulated processes take minutes to start
# the four fields of an ELF header by which the kernel knows an arm64 program, and the bits of them that count
MAGIC = r"\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
ENTER = f"""
set -e
if [ ! -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ]; then
    mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
    echo '{":qemu-aarch64:M::" + MAGIC + ":" + MASK + ":" + QEMU + ":F"}' > /proc/sys/fs/binfmt_misc/register
fi
root=$1 checkout=$2
shift 2
for folder in /proc /sys /dev /tmp "$checkout"; do
    mkdir -p "$root$folder"
    mount --rbind "$folder" "$root$folder"
done
exec chroot "$root" /bin/bash -c 'cd "$0" && exec "$@"' "$checkout" "$@"
"""


def make_userland(folder: Path, mirror: str, suite: str, index: str | None, wanted: Sequence[str]) -> None:
    """Download Debian's packages and the wheels, and unpack them; nothing of them is executed."""
    apt, root = folder / "apt", folder / "root"
    for name in ("state/lists/partial", "cache/archives/partial", "parts"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(f"deb {mirror} {suite} main\n")
    options = {
        "APT::Architecture": "arm64",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Dir::State": str(apt / "state"),
        "Dir::State::status": str(apt / "status"),
        "Dir::Cache": str(apt / "cache"),
        "Dir::Etc::sourcelist": str(apt / "sources.list"),
        "Dir::Etc::sourceparts": str(apt / "parts"),
    }
    config = apt / "apt.conf"
    lines = (f'{key} "{value}";\n' for key, value in options.items())
    config.write_text("".join(lines) + 'APT::Architectures { "arm64"; };\n')
    subprocess.run(["apt-get", "-qq", "-c", config, "update"], check=True)
    subprocess.run(["apt-get", "-qq", "-c", config, "install", "-y", "--download-only", *DEBS], check=True)
    root.mkdir(exist_ok=True)
    for archive in sorted((apt / "cache/archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", archive, root], check=True)
    shell = root / "bin" / "sh"
    if not shell.exists():
        shell.symlink_to("dash")
    python = ("--python-platform", "aarch64-manylinux_2_28", "--python-version", "3.11")
    where = ("--target", root / "opt/packages", *(("--index-url", index) if index else ()))
    words = ["uv", "pip", "install", "--quiet", *python, *where, "-r", ROOT / "pyproject.toml", "--extra", "data"]
    subprocess.run([*words, *WHEELS, *wanted], check=True)
    for script in (root / "opt/packages/bin").iterdir():  # uv names the host's Python in them
        first, newline, rest = script.read_bytes().partition(b"\n")
        if first.startswith(b"#!"):
            script.write_bytes(b"#!/usr/bin/python3" + newline + rest)
    print(f"{root}: {run(folder, ['uname', '-m'], capture=True)}")


def words_in(folder: Path, words: Sequence[str]) -> list[str]:
    """Return the command that runs a command in the userland, in the folder of the checkout."""
    variables = {
        "HOME": "/root",
        "NUMBA_CACHE_DIR": "/opt/numba",
        "OMP_NUM_THREADS": "1",  # a fork of an emulated process that has threads may hang
        "OPENBLAS_NUM_THREADS": "1",
        "PATH": "/opt/packages/bin:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{ROOT}:/opt/packages",
        "QEMU_CPU": CPU,
        "USER": "root",  # the userland has no /etc/passwd, and parts of PyTorch ask for the user's name
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    environment = ["/usr/bin/env", "-i", *(f"{key}={value}" for key, value in variables.items())]
    root = str((folder / "root").resolve())
    return ["unshare", "-Urm", "bash", "-c", ENTER, "enter", root, str(ROOT), *environment, *words]


def run(folder: Path, words: Sequence[str], *, capture: bool = False) -> str:
    """Run a command in the userland, and return what it printed if that is captured.

    Raises:
        CalledProcessError: the command failed.
    """
    done = subprocess.run(words_in(folder, words), check=True, text=True, stdout=subprocess.PIPE if capture else None)
    return (done.stdout or "").strip()


def write(folder: Path) -> None:
    """Write a payload of each method; it runs in the userland."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / f"{name}.bin").write_bytes(make(name))
        print(f"{name}: written", flush=True)


def compare(name: str, theirs: bytes) -> tuple[str, bool]:
    """Return how a payload from the userland differs from this machine's, and whether that is as promised."""
    ours = make(name)
    if theirs == ours:
        return "byte-equal", True
    expected, got = read(name, ours).vector, read(name, theirs).vector
    count = int(np.count_nonzero(expected != got))
    trains = type(build(name).training) is not LocalTraining
    if not count:
        return f"same vector; {len(theirs)} bytes, {len(ours)} here", True
    largest = float(np.abs(expected - got).max() / np.abs(expected).max())
    text = f"differs by {count} of {got.size} elements, at most {largest:.1e} of the largest"
    return text + (" (its training is part of it)" if trains else ""), trains or largest < 1e-4


def check(folder: Path, *, payloads: bool) -> bool:
    """Run the tests in the userland, then compare payloads; return whether all is as promised."""
    fine = True
    if not payloads:
        pytest = ["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", *ADDOPTS, *TESTS]
        fine = subprocess.run(words_in(folder, pytest)).returncode == 0
    run(folder, ["python3", "-m", "scripts.tools.arm64", "write", f"/{PAYLOADS}"])
    torch.set_num_threads(1)
    for name in NAMES:
        text, promised = compare(name, (folder / "root" / PAYLOADS / f"{name}.bin").read_bytes())
        print(f"{name:20} {text}", flush=True)
        fine &= promised
    return fine


def start_devices(
    folder: Path, log: Path, federation: Federation, home: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """Start the first device here and the second one in the userland, both with `fedmrn-deploy device --run`."""
    here, there = (
        ("-m", "fedmrn_app.deploy.cli", "device", "--run", str(federation.bundle(name))) for name in federation.devices
    )
    for name in federation.devices:
        write_device_services(federation, name)
    environment = {key: value for key, value in os.environ.items() if key != "FLWR_HOME"}
    processes.append(start([sys.executable, *here], home, environment, log / "x86_64.log"))
    processes.append(start(words_in(folder, ["python3", *there]), home, environment, log / "arm64.log"))


def train_round(folder: Path, runs: Path, overrides: Sequence[str]) -> float:
    """Run a federation with one device in the userland, then a simulation, and print how the weights differ.

    Args:
        folder: of the userland.
        runs: folder for the two runs and the devices' logs.
        overrides: of both runs.

    Returns:
        The largest difference of two weights, as a share of the largest weight.

    Raises:
        CalledProcessError: a run failed.
        RuntimeError: a client took no part in a round.
    """
    words = [*ROUND, *overrides]
    runs.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, soft_wrap=True, width=160)
    devices = partial(start_devices, folder, runs)
    deployed, simulated = runs / "deployed", runs / "simulated"
    if status := run_trial(2, [*words, *PATIENT, f"hydra.run.dir={deployed}"], console, devices):
        raise subprocess.CalledProcessError(status, ["fedmrn", "--on", "try"])
    subprocess.run([command("fedmrn"), *words, f"hydra.run.dir={simulated}"], check=True)
    for name, run in (("two devices", deployed), ("simulation", simulated)):
        summary = json.loads((run / "summary.json").read_text())
        with (run / "rounds.csv").open(newline="") as file:
            if any(row["clients_ok"] != "2" for row in csv.DictReader(file)):
                raise RuntimeError(f"{run}: a client took no part; {runs}/*.log and {run}/run.log say why")
        print(f"{name:12} weights {summary['weights_sha256']}, accuracy {summary['final_accuracy']:.4f}")
    got, expected = (
        np.concatenate([tensor.double().numpy().ravel() for tensor in read_state(run)[0].model.values()])
        for run in (deployed, simulated)
    )
    count, largest = int(np.count_nonzero(got != expected)), float(np.abs(got - expected).max())
    scale = float(np.abs(expected).max())
    print(f"{count} of {got.size} weights differ, by at most {largest:.1e}; the largest weight is {scale:.2f}")
    return largest / scale


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    parsers = {name: commands.add_parser(name) for name in ("make", "run", "check", "write", "round")}
    for each in parsers.values():
        each.add_argument("folder", type=Path)
    parsers["make"].add_argument("--mirror", default="http://deb.debian.org/debian")
    parsers["make"].add_argument("--suite", default="bookworm")
    parsers["make"].add_argument("--index", help="index of Python packages, by default uv's")
    parsers["make"].add_argument("--with", dest="wanted", action="append", default=[], help='such as "torch<2.11"')
    parsers["run"].add_argument("words", nargs=argparse.REMAINDER)
    parsers["check"].add_argument("--payloads", action="store_true")
    parsers["round"].add_argument("overrides", nargs="*", help="of the run, such as strategy=fedavg")
    parsers["round"].add_argument("--within", type=float, default=float("inf"), help="share of the largest weight")
    parsers["round"].add_argument("--keep", type=Path, help="folder for the two runs and the devices' logs")
    given = parser.parse_args(words)
    if given.command != "write" and not Path(QEMU).is_file():  # `write` is what the userland runs
        print(f"{QEMU} is missing; install it, on Debian with: apt install qemu-user-static", file=sys.stderr)
        return 2
    try:
        if given.command == "make":
            make_userland(given.folder.resolve(), given.mirror, given.suite, given.index, given.wanted)
        elif given.command == "run":
            run(given.folder, given.words)
        elif given.command == "write":
            write(given.folder)
        elif given.command == "round":
            with tempfile.TemporaryDirectory() as temporary:
                runs = (given.keep or Path(temporary)).resolve()
                return int(train_round(given.folder, runs, given.overrides) > given.within)
        else:
            return 0 if check(given.folder, payloads=given.payloads) else 1
    except subprocess.CalledProcessError as error:
        print(f"{shlex.join(map(str, error.cmd[:3]))} ... ended with status {error.returncode}", file=sys.stderr)
        return int(error.returncode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
