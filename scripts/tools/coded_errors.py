"""Print the size of updates at given squared errors, or their error at given sizes, with `strategy=quantized`.

Usage: python scripts/tools/coded_errors.py FILE... [--errors 0.62 0.53 ... | --bits 0.05 0.1 ...] [--elements]

FILEs are those of `save_updates.py`. An error is the squared one of the update at its best length, as a share of its
squared norm. Times are those of a whole encoding, with the search for the step, and of decoding, in nanoseconds of
processor time per weight on one core, each the median of three. `--elements` sends no factors
(`strategy.low_rank=false`).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fedmrn_app.layout import Layout
from fedmrn_app.methods.quantized import UniformLevels
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.adaptive_levels import trends_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument("--errors", nargs="+", type=float, default=[0.62, 0.53, 0.43, 0.32, 0.2, 0.1])
    wanted.add_argument("--bits", nargs="+", type=float, help="sizes in bits per weight, instead of errors")
    parser.add_argument("--elements", action="store_true", help="send elements, no factors")
    arguments = parser.parse_args()
    table = Table("file", "error", "bits per weight", "ns to encode", "ns to decode")
    for path in arguments.files:
        with np.load(path) as saved:
            x, weights, first, shapes = (saved[name] for name in ("update", "weights", "first", "shapes"))
        layout = Layout(tuple(tuple(int(n) for n in shape if n) for shape in shapes))
        known = SharedContext(layout, weights, first)
        trends = trends_of(known.drift)
        for aim in arguments.bits or arguments.errors:
            bits, error = (aim, None) if arguments.bits else (0.2, aim)
            codec = UniformLevels(bits, error, "auto", low_rank=not arguments.elements)
            times = []
            for _ in range(3):
                start = time.process_time()
                found = codec.search(x, layout, trends)
                body = codec.write(found)
                middle = time.process_time()
                codec.decode(body, known, 0)
                times.append((middle - start, time.process_time() - middle))
            table.add_row(
                f"{path.parent.name}/{path.stem}", f"{found.error:.3f}", f"{8 * len(body) / x.size:.4f}",
                *(f"{seconds / x.size * 1e9:.0f}" for seconds in np.median(times, axis=0)),
            )  # fmt: skip
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
