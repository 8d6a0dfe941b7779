"""Compare other frameworks' compression of one client's update with the plug-in line that replaces it.

Usage: python scripts/tools/pipelines.py

The update is that of one client of examples/quickstart: the 8x8 digits, 10 local epochs, all tensors as one vector.
Written here in NumPy, at OpenFL's default settings: KC (k-means with 6 clusters, then gzip of the float32 indices), SKC
(the largest hundredth, k-means, gzip) and STC (the largest tenth, their signs and one mean size, gzip). In their
favour: where SKC's elements are takes a bit per weight before gzip, and STC's size is the mean of what is kept.

APPFL's SZ3 and ZFP are the libraries pysz and zfpy where they are installed (`pip install pysz zfpy`), each with the
bound on the error at which its mean squared error is EDEN's. Without a library there is a row for a uniform quantiser
with the entropy of its levels in its place. There is no library of SZ2 here.

An error is ||x - x'||^2 / ||x||^2. EDEN is unbiased, so its error averages out over clients; the others' does not. The
plug-in's row is the shortest of its codecs whose error is no larger.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
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
    **{f'"eden", options={{"bits": {bits}}}': ("eden", {"bits": bits}) for bits in (1, 2, 3, 4)},
    **{f'"topk", options={{"ratio": {ratio}}}': ("topk", {"ratio": ratio}) for ratio in (0.01, 0.02, 0.05, 0.1)},
    '"terngrad"': ("terngrad", {}),
}


def main() -> None:
    x = quickstart_update()
    ours = {line: by_method(x, name, options) for line, (name, options) in OURS.items()}
    theirs: dict[str, Coded] = {"KC": k_means(x), "SKC": sparse_k_means(x), "STC": sparse_ternary(x)}
    for bits in (2, 4):
        aim = error(x, ours[f'"eden", options={{"bits": {bits}}}'][1])
        for name, code in error_bounded().items():
            theirs[f"{name}, error {aim:.4f}"] = at_error(x, code, aim)
    table = Table("instead of", "bytes", "error", "Compressed(strategy, ...)", "bytes", "error", "times shorter")
    for name, (size, decoded) in theirs.items():
        e = error(x, decoded)
        fit = {line: coded for line, coded in ours.items() if error(x, coded[1]) <= 1.005 * e}
        if not fit:
            table.add_row(name, f"{size:,}", f"{e:.4f}", "none")
            continue
        line = min(fit, key=lambda line: fit[line][0])
        found = fit[line]
        table.add_row(
            name, f"{size:,}", f"{e:.4f}", line, f"{found[0]:,}", f"{error(x, found[1]):.4f}", f"{size / found[0]:.2f}"
        )
    console = Console(width=140)
    console.print(f"{x.size:,} weights, {4 * x.size:,} bytes in float32")
    console.print(table)


def quickstart_update() -> Vector:
    """Return the update, float32 (d,)."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "quickstart"))
    from quickstart import task  # type: ignore[import-not-found]

    config = {"data-path": "", "seed": 0, "hold-out": False, "images-per-client": 0, "batch-size": 32}
    net = task.new_net(config)
    before = torch.cat([p.detach().flatten() for p in net.parameters()])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    task.train(net, task.client_loader(config, 0, 10, 1), 10, optimizer)
    update: Vector = (torch.cat([p.detach().flatten() for p in net.parameters()]) - before).numpy()
    return update


def by_method(x: Vector, name: str, options: dict[str, Any]) -> Coded:
    method = build_method(name, options, RunOptions(Noise()))
    known = SharedContext(Layout((x.shape,)), np.zeros_like(x), np.zeros_like(x))
    body = method.codec.encode(x, known, 1, 2)
    return len(body), method.codec.decode(body, known, 1)


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

        found["SZ3"] = sz3
    except ImportError:
        found["uniform quantiser for SZ3"] = uniform
    try:
        import zfpy  # type: ignore[import-not-found]

        def zfp(x: Vector, bound: float) -> Coded:
            data = zfpy.compress_numpy(x, tolerance=bound)
            return len(data), zfpy.decompress_numpy(data)

        found["ZFP"] = zfp
    except ImportError:
        found["uniform quantiser for ZFP"] = uniform
    return found


def uniform(x: Vector, bound: float) -> Coded:
    """Quantize to levels two bounds apart; the bytes are their empirical entropy."""
    levels = np.rint(x / np.float32(2 * bound))
    shares = np.unique(levels, return_counts=True)[1] / x.size
    return int(np.ceil(-x.size * (shares * np.log2(shares)).sum() / 8)), levels * np.float32(2 * bound)


def at_error(x: Vector, code: Callable[[Vector, float], Coded], aim: float) -> Coded:
    """Return a codec's shortest result with an error of at most `aim`, by bisection over its bounds."""
    low, high = 1e-6 * float(np.abs(x).max()), 4 * float(np.abs(x).max())
    for _ in range(16):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if error(x, code(x, middle)[1]) <= aim else (low, middle)
    return code(x, low)


def error(x: Vector, decoded: Vector) -> float:
    return float(np.square(x - decoded, dtype=np.float64).sum() / np.square(x, dtype=np.float64).sum())


if __name__ == "__main__":
    main()
