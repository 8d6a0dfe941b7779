"""Compare other frameworks' compression of one client's update with `method="quantized"` at the same error.

Usage: python scripts/tools/pipelines.py [UPDATE.npz ...] [--nncodec PYTHON]

Without an UPDATE, as `save_updates.py` keeps them, the update is that of one client of examples/quickstart: the 8x8
digits, 10 local epochs. Written here in NumPy, at OpenFL's default settings: KC (k-means with 6 clusters, then gzip of
the float32 indices), SKC (the largest hundredth, k-means, gzip) and STC (the largest tenth, their signs and one mean
size, gzip). In their favour: where SKC's elements are takes a bit per weight before gzip, and STC's size is the mean of
what is kept. APPFL's SZ3 and ZFP are the libraries pysz and zfpy where they are installed. There is no library of SZ2
here. NNCodec (ISO/IEC 15938-17) runs in the Python that `--nncodec` names, since it needs an older NumPy; of three
sets of options there is a row for the one that does best against `quantized` with a step.

An error is 1 - <x, x'>^2 / (||x||^2 ||x'||^2), the squared error at the best length of x', as a share. Only the
tensors of two and more dimensions are coded, the vector in memory order. `quantized` knows nothing of earlier rounds,
as in the plug-in.
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.cluster import KMeans

from fedmrn_app.layout import Layout
from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Noise

Vector = NDArray[np.float32]
Coded = tuple[int, Vector]  # bytes, and what is decoded from them
CLUSTERS = 6
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"EDEN, bits={bits}": ("eden", {"bits": bits}) for bits in (1, 2, 3, 4)},
    "DRIVE": ("drive", {}),
    **{f"Top-k, ratio={ratio}": ("topk", {"ratio": ratio}) for ratio in (0.01, 0.1)},
}
ERRORS = 0.6, 0.4, 0.2, 0.1, 0.03, 0.01
NNCODEC = """
import contextlib, io, sys, numpy as np
from importlib.metadata import version
from nncodec import nn
folder = sys.argv[1]
tensors = dict(np.load(folder + "/update.npz"))
for options in sys.argv[2].split():
    for qp in map(int, sys.argv[3].split()):
        settings = dict(qp=qp, results=folder, verbose=False, **{name: True for name in options.split("+")})
        with contextlib.redirect_stdout(io.StringIO()):
            data = nn.encode({name: x.copy() for name, x in tensors.items()}, settings)
            decoded = nn.decode(data)
        np.savez(f"{folder}/{options} {qp}.npz", size=len(data), **decoded)
print(version("nncodec"))
"""
NNCODEC_OPTIONS = "use_dq", "use_dq+opt_qp", "use_dq+opt_qp+row_skipping"


@dataclass(frozen=True)
class Update:
    """An update, float32 (d,) in memory order, and the shapes of its tensors."""

    name: str
    x: Vector
    layout: Layout


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare codecs of one client's update.")
    parser.add_argument("updates", nargs="*", type=Path, metavar="UPDATE.npz")
    parser.add_argument("--nncodec", metavar="PYTHON", help="a Python in which nncodec is installed")
    arguments = parser.parse_args()
    console = Console(width=140)
    for update in [saved(path) for path in arguments.updates] or [quickstart_update()]:
        table = Table("instead of", "bytes", "error", "quantized", "error", "times shorter")
        for name, (size, decoded) in peers(update, arguments.nncodec):
            e = error(update.x, decoded)
            ours = quantized(update, e)
            found = f"{error(update.x, ours[1]):.4f}"
            table.add_row(name, f"{size:,}", f"{e:.4f}", f"{ours[0]:,}", found, f"{size / ours[0]:.2f}")
        console.print(f"{update.name}: {update.x.size:,} weights, {4 * update.x.size:,} bytes in float32")
        console.print(table)


def peers(update: Update, nncodec: str | None) -> Iterator[tuple[str, Coded]]:
    """Yield what each other codec makes of an update, with its name."""
    x = update.x
    yield from (("KC", k_means(x)), ("SKC", sparse_k_means(x)), ("STC", sparse_ternary(x)))
    for name, code in error_bounded().items():
        yield from ((name, at_error(x, code, aim)) for aim in ERRORS)
    for name, (method, options) in OURS.items():
        yield name, by_method(update, method, options)
    if nncodec is not None:
        yield from best_nncodec(update, nncodec)


def saved(path: Path) -> Update:
    """Return an update that `save_updates.py` kept."""
    kept = np.load(path)
    return Update(path.stem, kept["update"], Layout(tuple(tuple(map(int, row[row > 0])) for row in kept["shapes"])))


def quickstart_update() -> Update:
    """Return the update of one client of the quickstart."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "quickstart"))
    from quickstart import task  # type: ignore[import-not-found]

    config = {"data-path": "", "seed": 0, "hold-out": False, "images-per-client": 0, "batch-size": 32}
    net = task.new_net(config)
    matrices = [p for p in net.parameters() if p.dim() > 1]
    before = [p.detach().clone() for p in matrices]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    task.train(net, task.client_loader(config, 0, 10, 1), 10, optimizer)
    moved = [(p.detach() - q).flatten() for p, q in zip(matrices, before, strict=True)]
    return Update("quickstart", torch.cat(moved).numpy(), Layout(tuple(tuple(p.shape) for p in matrices)))


def quantized(update: Update, aim: float) -> Coded:
    """Return the result of `quantized` whose error is at most `aim`."""
    for share in (0.995, 0.985, 0.975, 0.95):  # the codec comes within a hundredth
        coded = by_method(update, "quantized", {"error": share * aim})
        if error(update.x, coded[1]) <= aim:
            return coded
    raise RuntimeError(f"no result with an error of at most {aim}")


def by_method(update: Update, name: str, options: dict[str, Any]) -> Coded:
    method, zeros = build_method(name, options, RunOptions(Noise())), np.zeros_like(update.x)
    known = SharedContext(update.layout, zeros, zeros)
    body = method.codec.encode(update.x, known, 1, 2)
    return len(body), method.codec.decode(body, known, 1)


def best_nncodec(update: Update, python: str) -> Iterator[tuple[str, Coded]]:
    """Yield, for each step, the result of NNCodec that is shortest against `quantized` at its error."""
    tensors = {}
    for tensor, (part, shape) in enumerate(zip(update.layout.split(update.x), update.layout.shapes, strict=True)):
        wide = len(shape) == 4  # in memory the channels come last
        part = part.reshape([shape[place] for place in (0, 2, 3, 1)] if wide else shape)
        tensors[f"{tensor}.weight"] = np.ascontiguousarray(part.transpose(0, 3, 1, 2) if wide else part)
    middle = round(4 * np.log2(np.sqrt(np.mean(np.square(update.x)))))  # the step doubles with each four
    steps = [middle + away for away in (-8, -4, 0, 4, 7, 10)]
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/update.npz", **tensors)  # type: ignore[arg-type]
        command = [python, "-c", NNCODEC, folder, " ".join(NNCODEC_OPTIONS), " ".join(map(str, steps))]
        number = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        for step in steps:
            found = []
            for options in NNCODEC_OPTIONS:
                kept = np.load(f"{folder}/{options} {step}.npz")
                parts = [kept[name] for name in tensors]
                y = np.concatenate([(p.transpose(0, 2, 3, 1) if p.ndim == 4 else p).reshape(-1) for p in parts])
                if (e := error(update.x, y)) < 1:
                    coded = int(kept["size"]), y
                    found.append((coded[0] / quantized(update, e)[0], f"NNCodec {number}, {options}", coded))
            if found:
                yield min(found, key=lambda one: one[0])[1:]


def k_means(x: Vector) -> Coded:
    found = KMeans(CLUSTERS, n_init=1, random_state=0).fit(x[:, None])
    centres = found.cluster_centers_[:, 0].astype(np.float32)
    return len(gzip.compress(found.labels_.astype(np.float32).tobytes())) + centres.nbytes, centres[found.labels_]


def sparse_k_means(x: Vector) -> Coded:
    kept = largest(x, 0.01)
    size, values = k_means(x[kept])
    decoded = np.zeros_like(x)
    decoded[kept] = values
    return size + len(gzip.compress(np.packbits(kept).tobytes())), decoded


def sparse_ternary(x: Vector) -> Coded:
    kept = largest(x, 0.1)
    trits = np.where(kept, np.sign(x), 0).astype(np.float32)
    return len(gzip.compress(trits.tobytes())) + 4, trits * np.abs(x[kept]).mean()


def largest(x: Vector, share: float) -> NDArray[np.bool_]:
    kept = np.zeros(x.size, np.bool_)
    kept[np.argsort(np.abs(x))[-int(np.ceil(share * x.size)) :]] = True
    return kept


def error_bounded() -> dict[str, Callable[[Vector, float], Coded]]:
    """Return codecs by name; each takes a vector and a bound on each element's error."""
    found: dict[str, Callable[[Vector, float], Coded]] = {}
    try:
        from pysz import sz, szConfig, szErrorBoundMode  # type: ignore[import-not-found]

        def sz3(x: Vector, bound: float) -> Coded:
            config = szConfig(x.shape)
            config.errorBoundMode, config.absErrorBound = szErrorBoundMode.ABS, bound
            data, _ = sz.compress(x, config)
            return data.nbytes, sz.decompress(data, np.float32, x.shape)[0]

        found[f"SZ3 (pysz {version('pysz')})"] = sz3
    except ImportError:
        pass
    try:
        import zfpy  # type: ignore[import-not-found]

        def zfp(x: Vector, bound: float) -> Coded:
            data = zfpy.compress_numpy(x, tolerance=bound)
            return len(data), zfpy.decompress_numpy(data)

        found[f"ZFP (zfpy {version('zfpy')})"] = zfp
    except ImportError:
        pass
    return found


def at_error(x: Vector, code: Callable[[Vector, float], Coded], aim: float) -> Coded:
    """Return a codec's shortest result with an error of at most `aim`, by bisection over its bounds."""
    low, high = 1e-6 * float(np.abs(x).max()), 4 * float(np.abs(x).max())
    for _ in range(16):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if error(x, code(x, middle)[1]) <= aim else (low, middle)
    return code(x, low)


def error(x: Vector, decoded: Vector) -> float:
    wide, other = x.astype(np.float64), decoded.astype(np.float64)
    norms = float(wide @ wide) * float(other @ other)
    return 1 - float(wide @ other) ** 2 / norms if norms > 0 else 1.0


if __name__ == "__main__":
    main()
