"""Known answers: stored payloads must be read as the same numbers by all versions, on every machine.

`python -m tests.wire.test_vectors` writes payloads for methods, and layouts of their bodies, that have none yet. The
form in several lanes, which is for long bodies, is stored for short ones, as reading does not depend on the length.
`python -m tests.wire.test_vectors NAME...` rewrites the named ones, which is right only with a new format version.
"""

import hashlib
import json
import sys
from typing import Any

import pytest
import torch
from threadpoolctl import threadpool_limits

from fedmrn_app.learning.flat import state_sha256
from fedmrn_app.methods.drive import RotatedSigns
from fedmrn_app.methods.eden import EdenLevels
from tests.helpers import CASES
from tests.paths import ROOT
from tests.payloads import FACTORED_SCALES, NAMES, build, make, read, vector_of

FOLDER = ROOT / "tests" / "vectors"
ANSWERS = FOLDER / "answers.json"


def answer(name: str, data: bytes) -> dict[str, Any]:
    """Return the numbers that a payload is read as."""
    method, upload = build(name), read(name, data)
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
def test_method_has_a_stored_payload(name: str) -> None:
    assert name in WRITTEN, f"{name} has no vector: run `python -m tests.wire.test_vectors` and add what it writes"


@pytest.mark.parametrize("name", NAMES)
def test_a_payload_can_be_written_for_any_method(name: str) -> None:
    assert torch.get_num_threads() == 1  # two trainings are promised to be equal for an equal number of threads
    data = make(name)
    assert data == make(name)
    assert answer(name, data)["payload_sha256"] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("name", ["drive", "eden-bits-3", "fedmrn", *FACTORED_SCALES, "fedpm"])
def test_an_update_is_written_as_the_same_bytes_with_any_number_of_threads(name: str) -> None:
    x = vector_of(name)
    data = make(name, x)
    torch.set_num_threads(4)
    try:
        with threadpool_limits(4):
            assert make(name, x) == data
    finally:
        torch.set_num_threads(1)


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
