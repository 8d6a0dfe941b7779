"""The masked step and the last draw of masks on a GPU, so that the packed mask is all that crosses the bus.

Usage: python -m scripts.benchmarks.masks_on_device [--device cuda] [--weights 1e8] [--repeats 5] [--signed]

It needs PyTorch and NumPy alone. The table has medians of the repetitions: the masked step, plain SGD's step and a copy
of one vector on the device; the draw, packed on the device, with its copy to the host; and what it replaces, the copy
of the update with a draw on the host. The packed masks of both ways are compared bit for bit. The coder of masks needs
nothing else of the update, because their thresholds follow from the server's seed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedmrn_app.kernels.counter_rng import known_key, random_words, step_key, unit_floats
from fedmrn_app.kernels.masked_step import masked_step
from fedmrn_app.kernels.masking import MaskKind, Vectors, mask_probability

_BLOCK = 1 << 24  # elements drawn at a time, so that the 64-bit words of a block take 128 MiB
_SEED = 5


def packed_draw(u: Tensor, n: Tensor, kind: MaskKind, key: int) -> Tensor:
    """Return the mask of an update, drawn and packed on its device, uint8 (ceil(d / 8),), the lowest bit first."""
    packed = torch.empty(-(-u.numel() // 8), dtype=torch.uint8, device=u.device)
    places = (2 ** torch.arange(8, device=u.device)).to(torch.uint8)
    for start in range(0, u.numel(), _BLOCK):
        part = slice(start, start + _BLOCK)
        v = unit_floats(random_words(key, u[part].numel(), start, u.device))
        bits = (v < mask_probability(u[part], n[part], kind)).to(torch.uint8)
        bits = torch.nn.functional.pad(bits, (0, -bits.numel() % 8)).view(-1, 8)
        packed[start // 8 : start // 8 + len(bits)] = (bits * places).sum(1, dtype=torch.uint8)
    return packed


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the median time of a piece of work, by the clock, after one that is not counted."""
    times = []
    for _ in range(repeats + 1):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def wait(device: torch.device) -> None:
    """Wait for the work that a GPU has been given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Masks on a GPU.")
    parser.add_argument("--device", default="cuda", type=torch.device)
    parser.add_argument("--weights", default=1e8, type=float)
    parser.add_argument("--repeats", default=5, type=int)
    parser.add_argument("--signed", action="store_true")
    arguments = parser.parse_args(words)
    device, count, kind = arguments.device, int(arguments.weights), MaskKind(arguments.signed)
    torch.manual_seed(0)
    n = (torch.rand(count, device=device) - 0.5) * 0.02 + 1e-9
    u, gradient = n * torch.rand(count, device=device), torch.randn(count, device=device)
    w, key = torch.randn(count, device=device), known_key(_SEED)
    learned, out = u.clone(), torch.empty_like(w)
    step = masked_step(kind, Vectors(learned, n, w, out))
    host_n = n.cpu()

    def draw_on_host() -> Tensor:
        return packed_draw(u.cpu(), host_n, kind, key)

    works: dict[str, tuple[Callable[[], object], float]] = {
        "masked step": (lambda: step(0, gradient, 0.01, 0.5, step_key(_SEED, 1)), 0),
        "plain SGD's step": (lambda: w.add_(gradient, alpha=-1e-9), 0),
        "copy on the device": (lambda: out.copy_(w), 0),
        "draw, pack, and copy the mask to the host": (lambda: packed_draw(u, n, kind, key).cpu(), 1 / 8),
        "copy the update to the host": (lambda: u.cpu(), 4),
        "copy the update, draw and pack on the host": (draw_on_host, 4),
    }
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, PyTorch {torch.__version__}, {count:,} weights, {'signed' if kind.signed else 'binary'} masks")
    for label, (work, crossing) in works.items():
        took = seconds(work, device, arguments.repeats)
        print(f"{label:46} {1e3 * took:10.2f} ms {1e9 * took / count:8.3f} ns/weight {crossing:6.3f} B/weight to host")
    same = np.array_equal(packed_draw(u, n, kind, key).cpu().numpy(), draw_on_host().numpy())
    print("masks of both ways:", "equal" if same else "NOT EQUAL")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
