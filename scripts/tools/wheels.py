"""Print which dependencies have no wheel on which platform, and how many bring GPU libraries, as uv resolves them.

Usage: python -m scripts.tools.wheels [--python VERSION] [--with REQUIREMENT ...]

It needs `uv` 0.7 or later and an index of packages; it downloads metadata only, and installs nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLATFORMS = {
    "Linux x86-64": "x86_64-manylinux_2_28",
    "Linux arm64": "aarch64-manylinux_2_28",
    "macOS arm64": "aarch64-apple-darwin",
    "Windows x86-64": "x86_64-pc-windows-msvc",
}
EXTRAS: dict[str, tuple[str, ...]] = {"light core": (), "`[all]`": ("--extra", "all")}
GPU = ("nvidia-", "cuda-", "triton")


def resolve(platform: str, extra: Sequence[str], python: str, wanted: Sequence[str]) -> dict[str, bool]:
    """Return the packages of an installation, and of each whether the index has a wheel of it for the platform.

    Raises:
        CalledProcessError: uv found no versions that fit together; it has printed why.
    """
    where = ("--python-platform", platform, "--python-version", python, "--format", "pylock.toml")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as more:
        more.write("\n".join(wanted))
        more.flush()
        words = ["uv", "pip", "compile", "--quiet", *where, *extra, str(ROOT / "pyproject.toml"), more.name]
        printed = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    # uv leaves out wheels that do not fit the platform
    return {each["name"]: bool(each.get("wheels")) for each in tomllib.loads(printed)["packages"]}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", default="3.11", help="version of Python (default: 3.11)")
    parser.add_argument("--with", dest="wanted", action="append", default=[], help='such as "torch<2.11"')
    given = parser.parse_args(words)
    print("| platform | installation | packages | without a wheel | of GPU libraries |\n|---|---|---|---|---|")
    for name, platform in PLATFORMS.items():
        for installation, extra in EXTRAS.items():
            found = resolve(platform, extra, given.python, given.wanted)
            sources = ", ".join(f"`{package}`" for package, wheel in found.items() if not wheel) or "none"
            gpu = sum(package.startswith(GPU) for package in found)
            print(f"| {name} | {installation} | {len(found)} | {sources} | {gpu} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
