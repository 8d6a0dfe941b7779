"""Known answers: payloads written once must read as the same numbers for ever, on every machine.

`python -m tests.test_vectors` writes them anew, which is right only together with a new version of the format.
"""

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmrn_app.learning.flat import state_sha256
from fedmrn_app.methods import ClientUpdate, Common, Method, Noise, PostTraining, build_method, find_methods
from fedmrn_app.methods.drive import RotatedSigns
from fedmrn_app.methods.fedmrn import FedMRN
from fedmrn_app.noise import Float32Array, generate_noise
from fedmrn_app.shapes import sizes_of
from fedmrn_app.uplink import DenseFormat, read_upload, write_upload
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.masks import Evidence, pack_mask
from fedmrn_app.wire.sparse import pack_sparse
from fedmrn_app.wire.values import pack_floats

FOLDER = Path(__file__).parent / "vectors"
ANSWERS = FOLDER / "answers.json"
METHODS = sorted(find_methods())
SHAPES = ((8, 128, 4, 4), (10, 30))
D, M, SEED = sum(sizes_of(SHAPES)), 40, 123456789


def values(seed: int, count: int, alpha: float = 1.0) -> Float32Array:
    return generate_noise(seed, count, "gaussian", alpha)


def common(method: Method) -> Common:
    if method.name == "fedpm":
        tenths = np.round(np.abs(values(1, D, 0.3)).clip(0, 1) * 10)
        return Common(SHAPES, (tenths / 10).astype(np.float32), values(2, D))
    held = method.held(SHAPES, 0, 1, SEED)
    return Common(SHAPES, values(1, D) * held_or_one(held), values(2, D), held)


def held_or_one(held: NDArray[np.bool_] | None) -> Float32Array:
    return np.ones(D, np.float32) if held is None else held.astype(np.float32)


def build(name: str) -> Method:
    return build_method(name, {}, Noise("gaussian", 0.01), seed=4)


def dense_format() -> DenseFormat:
    return DenseFormat(values(3, M), [10, 30], 6)


def make(name: str) -> bytes:
    """A payload of what moves on where it moved before."""
    method = build(name)
    known = common(method)
    u = (known.trend * np.float32(0.002) + values(6, D, 0.001)).astype(np.float32)
    uniform = np.abs(generate_noise(7, D, "uniform", 1.0))
    if isinstance(method, PostTraining):
        body = method.compress(u, SEED, known, np.random.default_rng(5))
    elif isinstance(method, FedMRN):
        n = method.noise(SEED, D)
        kept = uniform < ((u + n) / (2 * n) if method.signed else u / n)
        body = pack_mask(kept, partial(method.evidence, n, known), "auto")
    elif name == "fedpm":
        body = pack_mask(uniform < known.vector, partial(Evidence, SHAPES, known.vector), "auto")
    elif name == "submodel":
        body = Body(pack_floats(u[known.held_weights()]))
    else:
        body = sparse_model(known)
    update = ClientUpdate(body, loss=0.5, train_seconds=2.0, compress_seconds=1.0)
    dense = dense_format().known + values(8, M, 0.01)
    return write_upload(method, update, dense, dense_format(), seed=SEED, samples=600, weights=D)


def sparse_model(known: Common) -> Body:
    from fedmrn_app.methods.fedsparsify import _evidence

    return pack_sparse(known.vector * (np.abs(known.vector) > 2), partial(_evidence, known), "auto")


def answer(name: str, data: bytes) -> dict[str, Any]:
    method = build(name)
    upload = read_upload(data, method, common(method), dense_format(), seed=SEED, samples=600)
    rotated = isinstance(method, RotatedSigns)  # by matrix products, whose last bits depend on the machine
    return {
        "payload_sha256": hashlib.sha256(data).hexdigest(),
        "coder": upload.payload.body.coder,
        "state_sha256": "" if rotated else state_sha256(upload.vector, upload.dense),
        "first": [float(f"{x:.5g}") for x in upload.vector[:5]],
    }


@pytest.mark.parametrize("name", METHODS)
def test_payload_reads_as_it_always_did(name: str) -> None:
    expected = json.loads(ANSWERS.read_text())[name]
    got = answer(name, (FOLDER / f"{name}.bin").read_bytes())
    assert got.pop("first") == pytest.approx(expected.pop("first"), rel=1e-4)
    assert got == expected


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    answers = {}
    for name in METHODS:
        data = make(name)
        (FOLDER / f"{name}.bin").write_bytes(data)
        answers[name] = answer(name, data)
    ANSWERS.write_text(json.dumps(answers, indent=2) + "\n")


if __name__ == "__main__":
    main()
