"""Folders that several test files read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"  # data sets, where they lie beside the checkout
