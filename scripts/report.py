"""Print finished runs as one Markdown table.

Usage: python scripts/report.py FOLDER [FOLDER ...]   (every summary.json in and below the folders)
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path

HEAD = (
    "| strategy | data | rounds | final accuracy | best accuracy "
    "| uplink a client, B | bits a parameter | in the last round | left out |"
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Print finished runs as one Markdown table.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a run's folder, or one above several")
    summaries = sorted(
        (path for folder in parser.parse_args().folders for path in folder.rglob("summary.json")),
        key=lambda path: (len(path.parts), [part.zfill(9) if part.isdigit() else part for part in path.parts]),
    )
    if not summaries:
        print("report: no summary.json in or below these folders; has the run ended?", file=sys.stderr)
        return 1
    print(HEAD)
    print("|---" * HEAD.count(" | ") + "|---|")
    for path in summaries:
        run = json.loads(path.read_text())
        with (path.parent / "rounds.csv").open(newline="") as file:
            last = list(csv.DictReader(file))[-1]
        cells = (
            run["strategy"],
            f"{run['dataset']}, {run['partition']}",
            run["rounds"],
            f"{run['final_accuracy']:.4f}",
            f"{run['best_accuracy']:.4f}",
            f"{run['uplink_bytes_per_client_round']:,.0f}",
            f"{run['uplink_bits_per_parameter']:.3f}",
            f"{float(last['uplink_bits_per_parameter']):.3f}",
            run["clients_failed"],
        )
        print("| " + " | ".join(map(str, cells)) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
