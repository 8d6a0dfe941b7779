"""Known answers for coded global vectors: stored bytes must be read as the same numbers by all versions.

`python -m tests.wire.test_order_vectors` writes those that are missing.
"""

import numpy as np
import pytest

from fedmrn_app.layout import Float32Array, Layout, slices
from fedmrn_app.noise import generate_noise
from fedmrn_app.wire.codebook import pack_palette, unpack_palette
from fedmrn_app.wire.lattice import Lattice, LatticeRule
from fedmrn_app.wire.lattice_code import decode_lattice, encode_lattice
from fedmrn_app.wire.lattice_levels import LatticeLevels
from tests.paths import ROOT

FOLDER = ROOT / "tests" / "vectors" / "orders"
RULE = LatticeRule((2400, 300, 10), masked=2, step=1.0, fine=1 / 16)
COUNT = sum(RULE.sizes)
LEVELS = LatticeLevels(Layout(((30, 80), (300,))), [10])
NAMES = ["levels", "levels-from-a-version"] + [
    f"{kind}{lanes}" for kind in ("grid", "grid-from-a-version", "palette") for lanes in ("", "-lanes")
]


def values(seed: int, alpha: float) -> Float32Array:
    return generate_noise(seed, COUNT, "gaussian", alpha)


def lattices() -> tuple[Lattice, Lattice]:
    """Return an earlier lattice and a later one, which has escapes."""
    initial, moved, later = values(1, 0.1), values(2, 0.1), values(3, 0.1)
    later[::500] *= 2000
    vector, reference = ([whole[part] for part in slices(RULE.sizes)] for whole in (initial + moved, initial))
    before = Lattice.rounded(vector, reference, RULE)
    counts = before.counts + np.rint(later * np.float32(8)).astype(np.int32)
    return before, Lattice(before.steps, counts)


def palette() -> Float32Array:
    return np.rint(values(4, 2.0)).astype(np.float32)


def pack(name: str) -> bytes:
    before, later = lattices()
    if name.startswith("palette"):
        return pack_palette(palette())
    if name.startswith("levels"):
        return LEVELS.encode(later, before if "version" in name else None)
    return encode_lattice(later, RULE.sizes, before if "version" in name else None)


@pytest.mark.parametrize("name", NAMES)
def test_stored_bytes_are_read_as_known(name: str) -> None:
    before, later = lattices()
    data = (FOLDER / f"{name}.bin").read_bytes()
    in_lanes = name.endswith("-lanes")
    if name.startswith("palette"):
        assert np.array_equal(unpack_palette(data, COUNT), palette())
        assert data[0] == (2 if in_lanes else 0)
        return
    base = before if "version" in name else None
    levels = name.startswith("levels")
    lattice = LEVELS.decode(data, base) if levels else decode_lattice(data, RULE.sizes, base)
    assert np.array_equal(lattice.counts, later.counts)
    assert np.array_equal(lattice.steps, later.steps)
    assert levels or data[0] & 16 == 16 * in_lanes


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in NAMES:
        if not (FOLDER / f"{name}.bin").exists():
            with pytest.MonkeyPatch.context() as patch:
                if name.endswith("-lanes"):
                    patch.setattr("fedmrn_app.wire.entropy.LONG", 0)
                (FOLDER / f"{name}.bin").write_bytes(pack(name))


if __name__ == "__main__":
    main()
