"""Errors and lengths of EDEN's and DRIVE's estimates of a real update, whose tensors have unequal sizes.

Usage: python scripts/theory/rotated_errors.py [--client 0] [--rounds 1] dataset.path=FOLDER

The update is that of one client in the last of `--rounds` rounds of FedAvg with `experiment=fmnist_label_shard` and the
given overrides: CNN4, three labels. An error is a squared one over the update's squared norm. A length is <x, y> over
the squared norm of x, for each tensor x and its estimate y, in the mean over `--seeds` rotations. The last column has
the bits per weight of a single payload's body, and the row "padded" is EDEN as the published code applies it: the
update padded with zeros to a power of two, one rotation of it, and one scale.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.federation.protocol import GlobalState
from fedmrn_app.federation.server import close_round, open_round
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.drive import DriveSigns
from fedmrn_app.methods.eden import EdenLevels, EdenSigns
from fedmrn_app.methods.hadamard import transform
from fedmrn_app.methods.method import Codec
from fedmrn_app.methods.quantizers import lloyd_max
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import generate_noise

CODECS: dict[str, Codec] = {
    "eden, 1 bit": EdenSigns(),
    "drive, least_mse": DriveSigns("least_mse"),
    "drive, unbiased": DriveSigns("unbiased"),
    **{f"eden, {bits} bits": EdenLevels(bits, "auto") for bits in (2, 3, 4)},
}


def real_update(overrides: list[str], client: int, rounds: int) -> tuple[Float32Array, Layout]:
    """Return the update of a client in the last round, float32 (d,), and the layout of its tensors."""
    words = ("experiment=fmnist_label_shard", "strategy=fedavg", *overrides)
    worker = build_worker(load_config(words))
    settings = worker.settings
    _, protocol = worker.model()
    samples = {number: worker.sample_count(number) for number in range(settings.clients)}
    state: GlobalState = protocol.begin()
    for number in range(1, rounds):
        opened = open_round(protocol, state, number, samples, settings.clients_per_round)
        state, _ = close_round(opened, {k: worker.train(opened.order(k)).payload for k in opened.clients})
    before = state.vector.copy()
    opened = open_round(protocol, state, rounds, {client: samples[client]}, 1)
    state, _ = close_round(opened, {client: worker.train(opened.order(client)).payload})
    return state.vector - before, protocol.layout


def estimate(codec: Codec, x: Float32Array, known: SharedContext, seed: int) -> tuple[Float32Array, int]:
    """Return the decoded update and the bytes of the body."""
    body = codec.encode(x, known, seed, 0)
    return codec.decode(body, known, seed), len(body)


def padded_eden(bits: int, x: Float32Array, seed: int) -> Float32Array:
    """Return EDEN's estimate with one rotation of 2^k elements and one scale."""
    size = 1 << (x.size - 1).bit_length()
    signs = generate_noise(seed, size, "bernoulli", 1.0)
    y = np.zeros((1, size), np.float32)
    y[0, : x.size] = x
    y *= signs
    transform(y)
    quantizer = lloyd_max(bits)
    square = float(np.square(y, dtype=np.float64).sum())
    decoded = quantizer.values(quantizer.quantize(y[0] * np.float32(np.sqrt(size / square))))
    decoded = (decoded * np.float32(square / float(y[0].astype(np.float64) @ decoded))).reshape(1, size)
    transform(decoded)
    back: Float32Array = (decoded * signs)[0, : x.size]
    return back


def row(x: Float32Array, estimates: list[Float32Array], layout: Layout) -> list[str]:
    """Return the cells of a row: the error of one, that of the mean of ten, and the length of each tensor."""
    norm = float(np.square(x, dtype=np.float64).sum())
    one = np.mean([np.square(y - x, dtype=np.float64).sum() for y in estimates]) / norm
    ten = np.square(np.mean(estimates[:10], axis=0, dtype=np.float64) - x).sum() / norm
    mean: NDArray[np.float64] = np.mean(np.stack(estimates), axis=0, dtype=np.float64)
    tensors = zip(layout.split(mean), layout.split(x), strict=True)
    lengths = [y @ part / np.square(part, dtype=np.float64).sum() for y, part in tensors]
    return [f"{one:.4f}", f"{ten:.4f}", *(f"{length:.3f}" for length in lengths)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=20, help="rotations; at least 10")
    parser.add_argument("overrides", nargs="*", help="of the configuration")
    arguments = parser.parse_args()
    x, layout = real_update(arguments.overrides, arguments.client, arguments.rounds)
    known = SharedContext(layout, x, x)
    names = ["x".join(map(str, shape)) for shape in layout.shapes]
    table = Table("codec", "error", "mean of 10", *names, "bits per weight")
    for name, codec in CODECS.items():
        found = [estimate(codec, x, known, seed) for seed in range(arguments.seeds)]
        table.add_row(name, *row(x, [y for y, _ in found], layout), f"{8 * found[0][1] / x.size:.3f}")
    for bits in (1, 2):
        padded = [padded_eden(bits, x, seed) for seed in range(arguments.seeds)]
        size = 1 << (x.size - 1).bit_length()
        table.add_row(f"eden, {bits} bit(s), padded", *row(x, padded, layout), f"{(bits * size + 32) / x.size:.3f}")
    console = Console(highlight=False, width=140)
    shares = [np.square(part).sum() / np.square(x).sum() for part in layout.split(x)]
    console.print(f"{x.size:,} weights; shares of the squared norm by tensor: {' '.join(f'{s:.3f}' for s in shares)}")
    console.print(table)


if __name__ == "__main__":
    main()
