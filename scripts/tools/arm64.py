"""Make an arm64 userland with this package's dependencies, run commands in it under emulation, and check it.

Usage: python -m scripts.tools.arm64 make FOLDER [--mirror URL] [--suite NAME] [--index URL] [--with REQUIREMENT ...]
       python -m scripts.tools.arm64 run FOLDER COMMAND...
       python -m scripts.tools.arm64 check FOLDER [--payloads]

It needs Debian's apt and dpkg, `unshare`, `uv`, `qemu-aarch64-static`, and no rights: the userland is entered in a user
namespace, which shares the network and /tmp with the host. Where the host has not registered the emulator, the kernel
must allow it in a namespace (Linux 6.7 and later). `check` runs the tests of vectors, noise, coders and kernels there,
writes a payload of each method there and here, and compares bytes and decoded vectors; with `--payloads` it only
compares. It fails if a test fails, or if a payload of a method that trains as FedAvg does is read as a vector whose
elements differ by more than 1e-4 of the largest.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedmrn_app.methods.method import LocalTraining
from tests.payloads import NAMES, build, make, read

ROOT = Path(__file__).resolve().parents[2]
QEMU = "/usr/bin/qemu-aarch64-static"
DEBS = ["base-files", "bash", "coreutils", "dash", "libgomp1", "libstdc++6", "python3"]
WHEELS = ["pytest", "hypothesis", "scikit-learn"]
TESTS = ["tests/wire/test_vectors.py", "tests/wire/test_entropy.py", "tests/test_noise.py", "tests/kernels"]
ADDOPTS = ["-o", "addopts=-m 'not slow and not long'"]  # without xdist, which is not installed
PAYLOADS = "opt/payloads"
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
    words = ["uv", "pip", "install", "--quiet", *python, *where, "-r", ROOT / "pyproject.toml", *WHEELS, *wanted]
    subprocess.run(words, check=True)
    print(f"{root}: {run(folder, ['uname', '-m'], capture=True)}")


def words_in(folder: Path, words: Sequence[str]) -> list[str]:
    """Return the command that runs a command in the userland, in the folder of the checkout."""
    variables = {
        "HOME": "/root",
        "NUMBA_CACHE_DIR": "/opt/numba",
        "PATH": "/opt/packages/bin:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{ROOT}:/opt/packages",
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


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    parsers = {name: commands.add_parser(name) for name in ("make", "run", "check", "write")}
    for each in parsers.values():
        each.add_argument("folder", type=Path)
    parsers["make"].add_argument("--mirror", default="http://deb.debian.org/debian")
    parsers["make"].add_argument("--suite", default="bookworm")
    parsers["make"].add_argument("--index", help="index of Python packages, by default uv's")
    parsers["make"].add_argument("--with", dest="wanted", action="append", default=[], help='such as "torch<2.11"')
    parsers["run"].add_argument("words", nargs=argparse.REMAINDER)
    parsers["check"].add_argument("--payloads", action="store_true")
    given = parser.parse_args(words)
    try:
        if given.command == "make":
            make_userland(given.folder.resolve(), given.mirror, given.suite, given.index, given.wanted)
        elif given.command == "run":
            run(given.folder, given.words)
        elif given.command == "write":
            write(given.folder)
        else:
            return 0 if check(given.folder, payloads=given.payloads) else 1
    except subprocess.CalledProcessError as error:
        print(f"{shlex.join(map(str, error.cmd[:3]))} ... ended with status {error.returncode}", file=sys.stderr)
        return int(error.returncode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
