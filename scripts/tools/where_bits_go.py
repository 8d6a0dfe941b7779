"""Draw where the bits of a round go: the parts of a client's reply, and what the client is sent, for several methods.

Usage: python -m scripts.tools.where_bits_go OUT.svg [OVERRIDE ...]

With each method a run with the overrides trains two rounds. The parts are those of the first client of the third one.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.exchange.content_size import content_bytes
from fedmrn_app.exchange.messages import payload_content
from fedmrn_app.exchange.orders import order_content
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.federation.server import open_round
from fedmrn_app.wire.payload import HEADER_SIZE, decode_payload

ROUNDS = 2  # before the one that is measured
SETTINGS = {
    "fedavg, downlink.dtype=float32": ("strategy=fedavg", "downlink.dtype=float32", "uplink.dense_bits=32"),
    "eden, downlink.dtype=float32": ("strategy=eden", "downlink.dtype=float32"),
    "eden": ("strategy=eden",),
    "fedmrn": ("strategy=fedmrn", "uplink.bits=null"),
    "fedmrn uplink.bits=0.5": ("strategy=fedmrn", "uplink.bits=0.5"),
    "fedmrn uplink.bits=0.2": ("strategy=fedmrn", "uplink.bits=0.2"),
    "quantized": ("strategy=quantized",),
    "quantized strategy.bits=0.1": ("strategy=quantized", "strategy.bits=0.1"),
}
DOWN, UP = ["order"], ["weights", "dense part", "header and frames"]
COLORS = dict(zip(DOWN + UP, ("#56B4E9", "#D55E00", "#E69F00", "#000000"), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    arguments, overrides = parser.parse_known_args()
    table = pd.DataFrame({name: bits_of((*overrides, *words)) for name, words in SETTINGS.items()}).T
    print(table.to_string(float_format="{:.4f}".format))
    arguments.out.write_text(draw(table))


def bits_of(overrides: tuple[str, ...]) -> dict[str, float]:
    """Return the bits per trained parameter of an order and of the parts of the reply, after some rounds."""
    worker = build_worker(load_config((*overrides, f"rounds={ROUNDS}")))
    _, protocol = worker.model()
    samples = {client: worker.sample_count(client) for client in range(worker.settings.clients)}
    opened = open_round(protocol, run_rounds(worker), ROUNDS + 1, samples, worker.settings.clients_per_round)
    client = min(opened.clients)
    order = opened.order(client)
    data = worker.train(order).payload
    payload = decode_payload(data, opened.header(client, opened.context(client)))
    body, dense = len(payload.body), len(payload.dense)
    assert HEADER_SIZE + body + dense == len(data)
    frames = content_bytes(payload_content(data)) - body - dense
    sizes = content_bytes(order_content(order, None, None)), body, dense, frames
    return {name: 8 * size / protocol.parameters for name, size in zip(COLORS, sizes, strict=True)}


def draw(table: pd.DataFrame) -> str:
    """Return a figure with a panel for each way, in which longer bars than three times the median are cut, as SVG."""
    with matplotlib.rc_context({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "fedmrn"}):
        figure = Figure(figsize=(9, 3), layout="constrained")
        table = table[::-1]
        panels = figure.subplots(1, 2, sharey=True)
        for panel, names, title in zip(panels, (DOWN, UP), ("server to client", "client to server"), strict=True):
            ends = table[names].sum(axis=1)
            longest = 3 * ends.median()
            left = pd.Series(0.0, table.index)
            for name in names:
                panel.barh(table.index, table[name], left=left, color=COLORS[name], label=name)
                left = left + table[name]
            for place, end in enumerate(ends):
                inside = end > longest
                text = f"{end:.1f} \u2192" if inside else f" {end:.2f}"
                panel.text(min(end, longest), place, text, va="center", ha="right" if inside else "left", fontsize=8)
            panel.set(title=title, xlabel="bits per parameter", xlim=(0, longest))
            panel.spines[["top", "right"]].set_visible(False)
            panel.legend(fontsize=8, loc="lower right")
        text_file = io.StringIO()
        figure.savefig(text_file, format="svg", metadata={"Date": None})
    return text_file.getvalue()


if __name__ == "__main__":
    main()
