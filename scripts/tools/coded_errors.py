"""Print how many bits take updates to given squared errors, as `strategy=quantized` codes them.

Usage: python scripts/tools/coded_errors.py FILE... [--errors 0.62 0.53 ...]

FILEs are those of `save_updates.py`. An error is the squared one of the update at its best length, as a share of its
squared norm. Times are those of one pass on one core, in nanoseconds of processor time per weight.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fedmrn_app.layout import Layout
from fedmrn_app.methods.quantized import PRICE, UniformLevels
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.adaptive_levels import decode_levels, quantize, trends_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--errors", nargs="+", type=float, default=[0.62, 0.53, 0.43, 0.32, 0.2, 0.1])
    arguments = parser.parse_args()
    table = Table("file", "error", "bits per weight", "ns to encode", "ns to decode")
    for path in arguments.files:
        with np.load(path) as saved:
            x, weights, first, shapes = (saved[name] for name in ("update", "weights", "first", "shapes"))
        layout = Layout(tuple(tuple(int(n) for n in shape if n) for shape in shapes))
        trends = trends_of(SharedContext(layout, weights, first).drift)
        for wanted in arguments.errors:
            found = UniformLevels(0.2, wanted, "auto").search(x, layout, trends)
            start = time.process_time()
            quantize(x, found.step, layout, trends, PRICE)
            middle = time.process_time()
            decode_levels(found.coded.data, layout, trends)
            times = [f"{seconds / x.size * 1e9:.0f}" for seconds in (middle - start, time.process_time() - middle)]
            table.add_row(path.stem, f"{found.error:.3f}", f"{8 * found.size / x.size:.4f}", *times)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
