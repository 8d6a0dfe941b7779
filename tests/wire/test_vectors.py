"""Known answers: stored payloads must be read as the same numbers by all versions, on every machine.

`python -m tests.wire.test_vectors` writes payloads for methods, and layouts of their bodies, that have none yet. The
form in several lanes, which is for long bodies, is stored for short ones, as reading does not depend on the length.
`python -m tests.wire.test_vectors NAME...` rewrites the named ones, which is right only with a new format version.
"""

import hashlib
import json
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.upload import Update, header_of, read_upload, write_upload
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.learning.batches import Batches
from fedmrn_app.learning.flat import FlatModel, state_sha256
from fedmrn_app.methods.drive import RotatedSigns
from fedmrn_app.methods.eden import EdenLevels
from fedmrn_app.methods.method import LocalTraining, Method, TrainContext
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Noise, generate_noise
from tests.helpers import CASES, image_task, images, make_method
from tests.paths import ROOT

FOLDER = ROOT / "tests" / "vectors"
ANSWERS = FOLDER / "answers.json"
LAYOUT = Layout(((8, 128, 4, 4), (10, 30)))
DENSE_SIZES = [10, 30]
D, M, SEED = LAYOUT.count, sum(DENSE_SIZES), 123456789
SAMPLES = 600
IN_LANES = "@lanes"
NAMES = [*CASES, f"eden-bits-3{IN_LANES}"]


def values(seed: int, count: int, alpha: float = 1.0) -> Float32Array:
    return generate_noise(seed, count, "gaussian", alpha)


def build(name: str) -> Method:
    return make_method(name.split("@")[0], noise=Noise("gaussian", 0.01))


def agreement_of(method: Method) -> RunProtocol:
    return RunProtocol(
        method=method, layout=LAYOUT, dense_sizes=DENSE_SIZES, initial=values(2, D), seed=0, dense_bits=6
    )


def known_of(method: Method) -> SharedContext:
    """Return weights that have moved, or tenths in [0, 1] if the global vector is packed as a palette."""
    if method.packing == "palette":
        tenths = np.round(np.abs(values(1, D, 0.3)).clip(0, 1) * 10)
        return SharedContext(LAYOUT, (tenths / 10).astype(np.float32), values(2, D))
    held = method.selection.submodel_mask(LAYOUT, 0, 1, SEED)
    vector = values(1, D)
    return SharedContext(LAYOUT, vector if held is None else vector * held.astype(np.float32), values(2, D), held)


class Toy(nn.Module):
    """A network whose weights have the layout of the vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Conv2d(128, 8, 4, bias=False)
        self.linear = nn.Linear(30, 10)
        self.last = nn.GroupNorm(1, 15)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, 128, 5, 5) to logits (n, 10)."""
        features = self.kernel(x).flatten(1)[:, :30]
        logits: Tensor = self.linear(self.last(features.view(-1, 15, 2)).flatten(1))
        return logits


def trained(method: Method, known: SharedContext) -> Float32Array:
    """Return what a codec encodes: an update that continues the earlier one, or the result of the method's training."""
    if type(method.training) is LocalTraining:
        return (known.drift * np.float32(0.002) + values(6, D, 0.001)).astype(np.float32)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = FlatModel(Toy())
        assert model.layout == LAYOUT
        assert model.dense_sizes == [10, 15, 15]
        model.load(known.vector, model.state()[1])
        task = image_task(128, 5)
        batches = Batches(task, images(20, task), batch_size=4, epochs=2, seed=1)
        return method.training.train(model, TrainContext(batches, 0.01, "float32", SEED, known, private_seed=5)).x


def make(name: str) -> bytes:
    """Return a payload of the method."""
    method = build(name)
    known = known_of(method)
    with pytest.MonkeyPatch.context() as patch:
        if name.endswith(IN_LANES):
            patch.setattr("fedmrn_app.wire.entropy.LONG", 0)
        body = method.codec.encode(trained(method, known), known, SEED, 5)
    assert len(body) <= method.codec.limits(LAYOUT).max_bytes
    before = values(3, M)
    update = Update(body, before + values(8, M, 0.01), loss=0.5, train_seconds=2.0, compress_seconds=1.0)
    protocol = agreement_of(method)
    return write_upload(protocol, header_of(protocol, SEED, SAMPLES, D), update, before)


def answer(name: str, data: bytes) -> dict[str, Any]:
    """Return the numbers that a payload is read as; behind an @ is its version or form."""
    method = build(name)
    protocol = agreement_of(method)
    upload = read_upload(data, protocol, header_of(protocol, SEED, SAMPLES, D), known_of(method), values(3, M))
    # the last bits of a rotation, which is a matrix product, depend on the machine
    rotated = isinstance(method.codec, (RotatedSigns, EdenLevels))
    return {
        "payload_sha256": hashlib.sha256(data).hexdigest(),
        "coder": upload.payload.body.form,
        "state_sha256": "" if rotated else state_sha256(upload.vector, upload.dense),
        "first": [float(f"{x:.5g}") for x in upload.vector[:5]],
    }


def known_answers() -> dict[str, Any]:
    answers: dict[str, Any] = json.loads(ANSWERS.read_text())
    return answers


WRITTEN = sorted(path.stem for path in FOLDER.glob("*.bin"))


@pytest.mark.parametrize("name", WRITTEN)
def test_stored_payload_is_read_as_known(name: str) -> None:
    expected = known_answers()[name]
    got = answer(name, (FOLDER / f"{name}.bin").read_bytes())
    assert got.pop("first") == pytest.approx(expected.pop("first"), rel=1e-4)
    assert got == expected


def test_every_answer_has_its_payload() -> None:
    assert sorted(known_answers()) == WRITTEN
    assert {name.split("@")[0] for name in WRITTEN} <= set(CASES)  # codes stay in use


@pytest.mark.parametrize("name", NAMES)
def test_a_payload_can_be_written_for_any_method(name: str) -> None:
    data = make(name)
    assert data == make(name)
    assert answer(name, data)["payload_sha256"] == hashlib.sha256(data).hexdigest()


def main(names: list[str]) -> None:
    answers = known_answers()
    for name in names or sorted(set(NAMES) - set(WRITTEN)):
        data = make(name)
        (FOLDER / f"{name}.bin").write_bytes(data)
        answers[name] = answer(name, data)
        print(f"{name}: {len(data)} bytes")
    ANSWERS.write_text(json.dumps(dict(sorted(answers.items())), indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
