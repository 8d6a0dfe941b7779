"""Compare other frameworks' compression of one client's update with `method="quantized"` at the same error.

Usage: python scripts/tools/pipelines.py [UPDATE.npz ...] [--names NAME ...] [--nncodec PYTHON]
    [--summary | --factors | --figure OUT.svg]

Without an UPDATE, as `save_updates.py` keeps them, the update is that of one client of examples/quickstart: the 8x8
digits, 10 local epochs. Written here in NumPy, at OpenFL's default settings: KC (k-means with 6 clusters, then gzip of
the float32 indices), SKC (the largest hundredth, k-means, gzip) and STC (the largest tenth, their signs and one mean
size, gzip). In their favour: where SKC's elements are takes a bit per weight before gzip, and STC's size is the mean of
what is kept. APPFL's SZ3 and ZFP are the libraries pysz and zfpy where they are installed. There is no library of SZ2
here. PowerSGD sends the leading singular vectors of each tensor in float32, which its power iteration approaches.
NNCodec (ISO/IEC 15938-17) runs in the Python that `--nncodec` names, since it needs an older NumPy. Its function
`nnc.compress` takes a price of bits in the choice of levels, `lambda_scale`, which is zero in `nn.encode`. The table is
of `nn.encode`: for each of six steps there is a row for the options that do best against `quantized`.

`--summary` prints one row per update: how many times shorter `quantized` is than NNCodec with the options that do best
near an error, in brackets with the best ones of `nn.encode`, and than the best of all other codecs. `--figure`
draws bytes over errors, a panel for each update. It shows the results of a codec that none of its other settings beats
in both bytes and error.

`--factors` prints near four errors how many times shorter `quantized` is than NNCodec on the tensors and on the leading
singular vectors of each tensor, and how many times the limit for factors of normal values it takes. The limit is
reverse water-filling: of a direction with singular value s in a tensor of m rows and n columns, vectors with relative
errors e and f take m / 2 log2(1 / e) + n / 2 log2(1 / f) bits and leave s^2 (e + f). NNCodec is given about the
directions that the limit keeps.

An error is 1 - <x, x'>^2 / (||x||^2 ||x'||^2), the squared error at the best length of x', as a share. Only the
tensors of two and more dimensions are coded, the vector in memory order. `quantized` knows nothing of earlier rounds,
as in the plug-in.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
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
Row = tuple[str, int, float]  # a codec, its bytes, and the error
CLUSTERS = 6
RANKS = 1, 2, 4, 8
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"EDEN, bits={bits}": ("eden", {"bits": bits}) for bits in (1, 2, 3, 4)},
    **{f"EDEN, uniform, bits={bits}": ("eden", {"bits": bits, "levels": "uniform"}) for bits in (2, 3, 4)},
    "DRIVE": ("drive", {}),
    **{f"Top-k, ratio={ratio}": ("topk", {"ratio": ratio}) for ratio in (0.01, 0.1)},
}
ERRORS = 0.6, 0.4, 0.2, 0.1, 0.03, 0.01
NNCODEC = """
import contextlib, io, json, sys, numpy as np
from importlib.metadata import version
from nncodec import nnc
folder, plan, sets, steps, least = sys.argv[1], *map(json.loads, sys.argv[2:])
tensors, x = dict(np.load(folder + "/tensors.npz")), np.load(folder + "/x.npy").astype(float)
lengths = {key: tensors.pop(key)[:, None] for key in list(tensors) if key.endswith("length")}


def vector(tensors):
    parts = []
    for name, form, size in plan:
        if form == "factors":
            left, right = (tensors[name + side].astype(float) for side in (".left.weight", ".right.weight"))
            parts.append(((left / lengths[name + ".length"]).T @ right).ravel())
        else:
            parts.append(tensors[name + ".weight"].ravel() if form == "tensor" else np.zeros(size))
    return np.concatenate(parts).astype(float)


found = []
for name, options in sets.items():
    for qp in steps:
        copies = {key: tensor.copy() for key, tensor in tensors.items()}
        with contextlib.redirect_stdout(io.StringIO()):
            data = nnc.compress(copies, folder + "/coded", qp, row_skipping=True, return_bitstream=True, **options)
            y = vector(nnc.decompress(data))
        error = 1 - (x @ y) ** 2 / ((x @ x) * (y @ y)) if y.any() else 1
        if error < 1:
            found.append((qp, (f"NNCodec {version('nncodec')}, {name}", len(data), error)))
        if error < least:
            break
print(json.dumps(found))
"""
# options besides `use_dq` and `row_skipping`, which are on
NN_ENCODE: dict[str, dict[str, Any]] = {"use_dq": {}, "use_dq+opt_qp": {"opt_qp": True}}
WITH_PRICE: dict[str, dict[str, Any]] = {
    **{f"lambda_scale={price}": {"lambda_scale": price} for price in (1, 2)},
    "lambda_scale=1, codebook_mode=1": {"lambda_scale": 1, "codebook_mode": 1},
}
AIMS = 0.6, 0.4, 0.2, 0.1  # errors of the summary
STEPS = -8, -4, 0, 4, 7, 10  # of NNCodec in the table
FIGURE_STEPS = range(-6, 17, 2)  # and in the figure


@dataclass(frozen=True, eq=False)
class Update:
    """An update, float32 (d,) in memory order, and the shapes of its tensors."""

    name: str
    x: Vector
    layout: Layout


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare codecs of one client's update.")
    parser.add_argument("updates", nargs="*", type=Path, metavar="UPDATE.npz")
    parser.add_argument("--nncodec", metavar="PYTHON", help="a Python in which nncodec is installed")
    parser.add_argument("--names", nargs="+", help="names of the updates; default: those of their files")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--summary", action="store_true", help="print one row per update; needs --nncodec")
    form.add_argument("--factors", action="store_true", help="print bits of factors and their limit; needs --nncodec")
    form.add_argument("--figure", type=Path, metavar="OUT.svg", help="draw bytes over errors")
    arguments = parser.parse_args()
    updates = [saved(path) for path in arguments.updates] or [quickstart_update()]
    if arguments.names:
        if len(arguments.names) != len(updates):
            parser.error(f"--names: {len(arguments.names)} for {len(updates)} updates")
        updates = [replace(update, name=name) for update, name in zip(updates, arguments.names, strict=True)]
    console = Console(width=140)
    if arguments.figure is not None:
        arguments.figure.write_text(draw({update: curves(update, arguments.nncodec) for update in updates}))
        return
    if arguments.summary:
        if arguments.nncodec is None:
            parser.error("--summary needs --nncodec")
        table = Table("update", "weights", *(f"NNCodec, {aim}" for aim in AIMS), "others, 0.1 to 0.6", "others")
        for update in updates:
            table.add_row(update.name, f"{update.x.size:,}", *summary(update, arguments.nncodec))
        console.print(table)
        return
    if arguments.factors:
        if arguments.nncodec is None:
            parser.error("--factors needs --nncodec")
        table = Table("update", "error", "NNCodec", "NNCodec on factors", "times the limit")
        for update in updates:
            for row in factor_rows(update, arguments.nncodec):
                table.add_row(update.name, *row)
        console.print(table)
        return
    for update in updates:
        table = Table("instead of", "bytes", "error", "quantized", "error", "times shorter")
        for name, size, e in [*others(update), *best_by_step(update, arguments.nncodec)]:
            ours = quantized(update, e)
            found = f"{error(update.x, ours[1]):.4f}"
            table.add_row(name, f"{size:,}", f"{e:.4f}", f"{ours[0]:,}", found, f"{size / ours[0]:.2f}")
        console.print(f"{update.name}: {update.x.size:,} weights, {4 * update.x.size:,} bytes in float32")
        console.print(table)


def summary(update: Update, python: str) -> Iterator[str]:
    """Yield how many times shorter `quantized` is than NNCodec near each error, and than the others."""
    coded = [row for _, row in nncodec(update, python, NN_ENCODE | WITH_PRICE, range(17, -9, -1), 0.8 * AIMS[-1])]
    for aim in AIMS:
        times = times_near(update, coded, aim)
        plain = [ratio for ratio, priced in times if not priced]
        yield f"{min(times)[0]:.2f} ({min(plain):.2f})" if plain else f"{min(times)[0]:.2f}" if times else "none"
    rows = [(times_shorter(update, row), row) for row in others(update)]
    for chosen in [pair for pair in rows if 0.09 < pair[1][2] < 0.65], rows:
        ratio, (name, _, e) = min(chosen)
        yield f"{ratio:.2f}, {name}, {e:.2f}"


def times_near(update: Update, coded: list[Row], aim: float) -> list[tuple[float, bool]]:
    """Return for each codec how many times shorter `quantized` is than its result near an error, and if priced."""
    near = {name: [row for row in coded if row[0] == name and 0.8 < row[2] / aim < 1.25] for name, *_ in coded}
    nearest = [min(rows, key=lambda row: abs(row[2] - aim)) for rows in near.values() if rows]
    return [(times_shorter(update, row), "lambda" in row[0]) for row in nearest]


def curves(update: Update, python: str | None) -> dict[str, list[tuple[float, int]]]:
    """Return the errors and bytes of each codec, by its name without options."""
    found: dict[str, list[tuple[float, int]]] = {"quantized": []}
    for aim in (0.8, *ERRORS):
        size, decoded = quantized(update, aim)
        found["quantized"].append((error(update.x, decoded), size))
    priced = nncodec(update, python, NN_ENCODE | WITH_PRICE, FIGURE_STEPS) if python else []
    for name, size, e in [*others(update), *(row for _, row in priced)]:
        found.setdefault(name.split(",")[0], []).append((e, size))
    return {name: shortest(points) for name, points in found.items()}


def shortest(points: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the pairs of an error and a size to which no other pair is equal or better in both, by error."""
    kept: list[tuple[float, int]] = []
    for e, size in sorted(points):
        if not kept or size < kept[-1][1]:
            kept.append((e, size))
    return kept


def draw(panels: dict[Update, dict[str, list[tuple[float, int]]]]) -> str:
    """Return a figure of bytes over squared errors as SVG, both on logarithmic scales."""
    with matplotlib.rc_context({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "fedmrn"}):
        figure = Figure(figsize=(4.5 * len(panels), 4), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for panel, (update, codecs) in zip(axes, panels.items(), strict=True):
            for number, (name, points) in enumerate(codecs.items()):
                own = name == "quantized"
                style = {"color": "black" if own else f"C{number - 1}", "linewidth": 2.0 if own else 1.0}
                panel.plot(*zip(*points, strict=True), "o-", markersize=3, label=name, **style)
            panel.set(xscale="log", yscale="log", xlabel="squared error, as a share of the squared norm")
            panel.set(ylabel="bytes", title=f"{update.name}, {update.x.size:,} weights")
            panel.spines[["top", "right"]].set_visible(False)
        axes[-1].legend(fontsize=8)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def times_shorter(update: Update, row: Row) -> float:
    _, size, e = row
    return size / quantized(update, e)[0]


def others(update: Update) -> Iterator[Row]:
    """Yield what each codec other than NNCodec makes of an update."""
    x = update.x
    coded = [("KC", k_means(x)), ("SKC", sparse_k_means(x)), ("STC", sparse_ternary(x))]
    coded += [(name, at_error(x, code, aim)) for name, code in error_bounded().items() for aim in ERRORS]
    coded += [(name, by_method(update, method, options)) for name, (method, options) in OURS.items()]
    coded += [(f"PowerSGD, rank={rank}", low_rank(update, rank)) for rank in RANKS]
    rows = ((name, size, error(x, decoded)) for name, (size, decoded) in coded)
    yield from (row for row in rows if row[2] > 1e-6)  # PowerSGD is exact where a tensor has no more rows than its rank


def low_rank(update: Update, rank: int) -> Coded:
    """Return each tensor as the product of its leading singular vectors, in float32."""
    size, parts = 0, []
    for part, shape in zip(update.layout.split(update.x), update.layout.shapes, strict=True):
        u, s, vt = np.linalg.svd(part.reshape(shape[0], -1).astype(np.float64), full_matrices=False)
        kept = min(rank, s.size)
        size += min(4 * kept * (u.shape[0] + vt.shape[1]), 4 * part.size)
        parts.append(((u[:, :kept] * s[:kept]) @ vt[:kept]).ravel())
    return size, np.concatenate(parts).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Direction:
    """A singular value of a tensor with its vectors, of m and n elements."""

    tensor: int
    value: float
    left: NDArray[np.float64]
    right: NDArray[np.float64]

    def at(self, level: float) -> tuple[float, float]:
        """Return bits and squared error at a price of bits, of the cheaper choice of sending it or not."""
        power = self.value**2
        errors = [size * level / power for size in (self.left.size, self.right.size)]
        bits = sum(size / 2 * -np.log2(e) for size, e in zip((self.left.size, self.right.size), errors, strict=True))
        if max(errors) >= 1 or 2 * np.log(2) * level * bits + power * sum(errors) > power:
            return 0.0, power
        return float(bits), power * sum(errors)


def directions(update: Update) -> list[Direction]:
    """Return all directions of the tensors of an update."""
    found = []
    for tensor, (part, shape) in enumerate(zip(update.layout.split(update.x), update.layout.shapes, strict=True)):
        u, s, vt = np.linalg.svd(part.reshape(shape[0], -1).astype(np.float64), full_matrices=False)
        found += [Direction(tensor, s[k], u[:, k], vt[k]) for k in range(s.size) if s[k] > 1e-9 * s[0]]
    return found


def limit(found: list[Direction], aim: float) -> tuple[float, float]:
    """Return the bits of all factors at a share `aim` of the squared norm, and the level of their errors."""
    power = sum(each.value**2 for each in found)
    low, high = 1e-12 * power, power
    for _ in range(100):
        level = float(np.sqrt(low * high))
        low, high = (low, level) if sum(each.at(level)[1] for each in found) > aim * power else (level, high)
    return sum(each.at(low)[0] for each in found), low


def factored(update: Update, found: list[Direction], level: float, python: str) -> list[Row]:
    """Return results of NNCodec on the factors that are kept at a level; a float16 per direction is their length."""
    tensors, plan, extra = dict[str, Any](), list[tuple[str, str, int]](), 0
    parts = list(zip(update.layout.split(update.x), update.layout.shapes, strict=True))
    for tensor, (part, shape) in enumerate(parts):
        kept = [each for each in found if each.tensor == tensor and each.at(level)[0]]
        form = "zeros"
        if kept and len(kept) * (shape[0] + part.size // shape[0]) >= part.size:
            form, tensors[f"{tensor}.weight"] = "tensor", part.reshape(shape[0], -1)
        elif kept:
            form, extra = "factors", extra + 2 * len(kept)
            tensors[f"{tensor}.left.weight"] = np.stack([each.value * each.left for each in kept]).astype(np.float32)
            tensors[f"{tensor}.right.weight"] = np.stack([each.value * each.right for each in kept]).astype(np.float32)
            tensors[f"{tensor}.length"] = np.array([each.value for each in kept])
        plan.append((str(tensor), form, part.size))
    rows = run_nncodec(python, update.x, tensors, plan, NN_ENCODE | WITH_PRICE, range(-4, 17))
    return [(name, size + extra, e) for _, (name, size, e) in rows]


def factor_rows(update: Update, python: str) -> Iterator[tuple[str, ...]]:
    """Yield for each error how many times shorter `quantized` is than NNCodec, with and without factors, and the limit.

    The last is how many times the limit `quantized` takes.
    """
    found = directions(update)
    plain = [row for _, row in nncodec(update, python, NN_ENCODE | WITH_PRICE, range(17, -9, -1), 0.8 * AIMS[-1])]
    for aim in AIMS:
        level = limit(found, aim)[1]
        factors = [row for times in (0.5, 1, 2) for row in factored(update, found, times * level, python)]
        cells = [min(times for times, _ in times_near(update, rows, aim)) for rows in (plain, factors)]
        size, decoded = quantized(update, aim)
        cells.append(8 * size / limit(found, error(update.x, decoded))[0])
        yield f"{aim:g}", *(f"{cell:.2f}" for cell in cells)


def saved(path: Path) -> Update:
    """Return an update that `save_updates.py` kept."""
    kept = np.load(path)
    return Update(
        f"{path.parent.name}/{path.stem}",
        kept["update"],
        Layout(tuple(tuple(map(int, row[row > 0])) for row in kept["shapes"])),
    )


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


def best_by_step(update: Update, python: str | None) -> Iterator[Row]:
    """Yield, for each step, the result of NNCodec that is shortest against `quantized` at its error."""
    found: dict[int, list[Row]] = {}
    for step, row in nncodec(update, python, NN_ENCODE, STEPS) if python else ():
        found.setdefault(step, []).append(row)
    yield from (min(rows, key=lambda row: times_shorter(update, row)) for _, rows in sorted(found.items()))


def nncodec(
    update: Update, python: str, sets: dict[str, dict[str, Any]], steps: Iterable[int], least: float = 0
) -> list[tuple[int, Row]]:
    """Return the results of NNCodec with all sets of options, down to an error of `least`, with their steps.

    The step doubles with each four; zero is about the root mean square of the update.
    """
    tensors, parts = dict[str, Vector](), list[Vector]()
    for tensor, (part, shape) in enumerate(zip(update.layout.split(update.x), update.layout.shapes, strict=True)):
        wide = len(shape) == 4  # in memory the channels come last
        part = part.reshape([shape[place] for place in (0, 2, 3, 1)] if wide else shape)
        tensors[f"{tensor}.weight"] = np.ascontiguousarray(part.transpose(0, 3, 1, 2) if wide else part)
        parts.append(tensors[f"{tensor}.weight"].ravel())
    plan = [(str(tensor), "tensor", part.size) for tensor, part in enumerate(parts)]
    return run_nncodec(python, np.concatenate(parts), tensors, plan, sets, steps, least)


def run_nncodec(
    python: str,
    x: Vector,
    tensors: dict[str, Vector],
    plan: list[tuple[str, str, int]],
    sets: dict[str, dict[str, Any]],
    steps: Iterable[int],
    least: float = 0,
) -> list[tuple[int, Row]]:
    """Return results of NNCodec on tensors of which `plan` makes x; steps are relative to the root mean square of x."""
    middle = round(4 * np.log2(np.sqrt(np.mean(np.square(x)))))
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/tensors.npz", **tensors)  # type: ignore[arg-type]
        np.save(f"{folder}/x.npy", x)
        sent = [json.dumps(value) for value in (plan, sets, [middle + step for step in steps], least)]
        run = subprocess.run([python, "-c", NNCODEC, folder, *sent], check=True, stdout=subprocess.PIPE, text=True)
    return [(step, (name, size, e)) for step, (name, size, e) in json.loads(run.stdout)]


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
