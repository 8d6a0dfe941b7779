"""The versions that the package accepts, each combination in an environment of its own.

Every cell runs the main job, the stored vectors and some 500 quick tests, and adds a row to `outputs/matrix.md`.
`nox` runs all of them, `nox -p 3.14` those of one Python. Interpreters are taken from the PATH, or fetched by uv.
"""

import json
import tempfile
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv"
nox.options.sessions = ["matrix", "plugin"]

FLOWER = ("1.40", "1.41", "1.42")
# the oldest of each that has wheels for a version of Python; of `newest`, whatever the ranges in pyproject.toml admit
OLDEST = {
    "3.11": ("torch==2.6.*", "numpy==2.0.*", "numba==0.63.*"),
    "3.12": ("torch==2.6.*", "numpy==2.0.*", "numba==0.63.*"),
    "3.13": ("torch==2.6.*", "numpy==2.1.*", "numba==0.63.*"),
    "3.14": ("torch==2.9.*", "numpy==2.3.*", "numba==0.63.*"),
}
QUICK = ("tests/plugin", "tests/kernels", "tests/wire/test_vectors.py", "tests/test_noise.py", "tests/test_seeds.py")
TABLE = Path("outputs", "matrix.md")
HEADER = "| Python | flwr | torch | numpy | numba | main job, accuracy | weights | quick tests |\n" + "|---" * 8 + "|\n"


@nox.session(python=list(OLDEST))
@nox.parametrize("flwr", FLOWER)
@nox.parametrize("torch", ["oldest", "newest"])
def matrix(session: nox.Session, flwr: str, torch: str) -> None:
    """Run one cell: the main job, the vectors and the quick tests."""
    assert isinstance(session.python, str)
    pins = OLDEST[session.python] if torch == "oldest" else ()
    session.install("-e", ".[all]", "pytest", "pytest-xdist", "hypothesis", f"flwr=={flwr}.*", *pins)
    with tempfile.TemporaryDirectory() as folder:
        environment = {"NUMBA_CACHE_DIR": f"{folder}/numba", "FLWR_TELEMETRY_ENABLED": "0", "PYTHONPATH": ""}
        session.run("fedmrn", f"hydra.run.dir={folder}/run", env=environment, success_codes=[0, 1])
        if not Path(folder, "run", "summary.json").exists():
            session.error(Path(folder, "run", "flower.log").read_text())
        words = ("-n", "0", "-p", "no:cacheprovider", "-m", "not slow and not long and not flower")
        printed = session.run("pytest", *words, *QUICK, env=environment, success_codes=[0, 1], silent=True)
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
    last = str(printed).strip().splitlines()[-1]
    made = summary["made_with"]
    versions = "import numpy, numba; print(numpy.__version__, '|', numba.__version__)"
    numeric = str(session.run("python", "-c", versions, silent=True)).strip()
    TABLE.parent.mkdir(exist_ok=True)
    if not TABLE.exists():
        TABLE.write_text(HEADER)
    cells = [made["python"], made["flwr"], made["torch"], numeric, f"{summary['final_accuracy']:.4f}"]
    with TABLE.open("a") as file:
        file.write(f"| {' | '.join(cells)} | {summary['weights_sha256'][:12]} | {last.strip('= ')} |\n")
    if "failed" in last or "error" in last:
        session.error(last)


@nox.session(python="3.11")
@nox.parametrize("flwr", ("1.29", "1.36", "1.42"))
def plugin(session: nox.Session, flwr: str) -> None:
    """Run the tests of the plug-in without PyTorch, with the versions of Flower that it accepts."""
    session.install("-r", "requirements/plugin.txt", f"flwr=={flwr}.*", "pytest")
    session.install("--no-deps", "-e", ".")
    names = ("replies", "without_torch", "legacy", "imports")
    tests = [f"tests/plugin/test_{name}.py" for name in names]
    session.run("pytest", "-q", "-o", "addopts=", "--noconftest", *tests)
