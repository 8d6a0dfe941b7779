"""Windows of texts equal those of a plain loop, in both layouts; texts that do not fit are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmrn_app.errors import DataError
from fedmrn_app.tasks.characters import ALPHABET, OUTSIDE, Characters, encode
from fedmrn_app.tasks.task import Samples
from tests.paths import SHARED

LETTERS = np.array(list(ALPHABET[1:]))
WINDOW = 6

Pairs = list[tuple[int, str, str]]  # role number, window, the character after it


def random_texts() -> dict[str, str]:
    """Texts of roles, not in the order of their ids; one is too short for a window."""
    generator = np.random.default_rng(0)
    lengths = {"HAMLET": 200, "BOY": WINDOW, "ROMEO": 61, "ANNE": 40, "YORK": WINDOW + 1}
    return {role: "".join(generator.choice(LETTERS, length)) for role, length in lengths.items()}


def write_rows(folder: Path, columns: dict[str, list[Any]]) -> str:
    from datasets import Dataset

    folder.mkdir(exist_ok=True)
    Dataset.from_dict(columns).to_parquet(str(folder / "train-00000-of-00001.parquet"))
    return str(folder)


def write_texts(folder: Path, texts: dict[str, str]) -> str:
    return write_rows(folder, {"character_id": list(texts), "text": list(texts.values())})


def write_windows(folder: Path, texts: dict[str, str]) -> str:
    """LEAF's layout: a row for each window."""
    rows = [(r, t[i : i + WINDOW], t[i + WINDOW]) for r, t in texts.items() for i in range(len(t) - WINDOW)]
    role, x, y = (list(column) for column in zip(*rows, strict=True))
    return write_rows(folder, {"character_id": role, "x": x, "y": y})


def reference(texts: dict[str, str], test_share: float) -> tuple[Pairs, Pairs]:
    """Both splits by a plain loop."""
    train, test = [], []
    for number, role in enumerate(sorted(texts)):
        text = texts[role]
        windows = [(number, text[i : i + WINDOW], text[i + WINDOW]) for i in range(len(text) - WINDOW)]
        split = len(windows) - int(len(windows) * test_share)
        train += windows[:split]
        test += windows[split + WINDOW :]
    return train, test


def pairs(samples: Samples) -> Pairs:
    assert samples.groups is not None
    x, y = samples.take(slice(None))
    return [
        (int(group), "".join(ALPHABET[i] for i in window), ALPHABET[target])
        for group, window, target in zip(samples.groups, x, y, strict=True)
    ]


def test_the_alphabet_is_leafs() -> None:
    assert len(set(ALPHABET)) == len(ALPHABET) == 80
    assert encode("\n}A").tolist() == [0, 79, ALPHABET.index("A")]
    assert encode("\t$é€\U0001f600\ud800").tolist() == [OUTSIDE] * 6
    assert encode("").tolist() == []


@pytest.mark.parametrize("test_share", [0.2, 0.5])
def test_both_layouts_give_the_windows_of_a_plain_loop(tmp_path: Path, test_share: float) -> None:
    texts = random_texts()
    cut = {
        role: text for role, text in texts.items() if role != "BOY"
    }  # without windows it has no rows in LEAF's layout
    for path, expected in (
        (write_texts(tmp_path / "texts", texts), reference(texts, test_share)),
        (write_windows(tmp_path / "windows", cut), reference(cut, test_share)),
    ):
        task = Characters(path=path, window=WINDOW, test_share=test_share)
        assert (pairs(task.load("train")), pairs(task.load("test"))) == expected
    assert {group for group, _, _ in reference(texts, test_share)[0]} == {0, 2, 3, 4}  # BOY, number 1, has no window


def test_rows_of_a_role_need_not_be_adjacent(tmp_path: Path) -> None:
    columns = {"character_id": ["b", "a", "b"], "text": ["first words", "aside", "second"]}
    task = Characters(path=write_rows(tmp_path / "data", columns), window=4, test_share=0)
    found = pairs(task.load("train"))
    whole = ["first words"[i : i + 4] for i in range(7)]
    assert [x for group, x, _ in found if group == 1] == [*whole, "seco", "econ"]
    assert [x + y for group, x, y in found if group == 0] == ["aside"]


def test_no_character_is_in_both_splits(tmp_path: Path) -> None:
    text = ALPHABET[1:79]  # every character once
    task = Characters(path=write_texts(tmp_path / "data", {"a": text}), window=WINDOW)
    seen, held_out = (
        {c for _, x, y in pairs(task.load(split)) for c in x + y}
        for split in ("train", "test")  # type: ignore[arg-type]
    )
    assert seen | held_out == set(text)
    assert not seen & held_out


def test_limits_keep_evenly_spaced_windows_of_each_role(tmp_path: Path) -> None:
    texts = random_texts()
    path = write_texts(tmp_path / "data", texts)
    train, test = reference(texts, 0.2)
    task = Characters(path=path, window=WINDOW, max_samples=7, max_test_samples=3)
    expected = []
    for number in range(5):
        windows = [row for row in train if row[0] == number]
        kept = min(7, len(windows))
        expected += [windows[i * len(windows) // kept] for i in range(kept)]
    assert pairs(task.load("train")) == expected
    found = pairs(task.load("test"))
    assert set(found) < set(test)
    assert len(found) == 3 * len({row[0] for row in test})
    assert pairs(Characters(path=path, window=WINDOW).load("train")) == train


def test_windows_are_made_on_demand_and_texts_decoded_once(tmp_path: Path) -> None:
    task = Characters(path=write_texts(tmp_path / "data", random_texts()), window=WINDOW)
    lines: list[str] = []
    train = task.load("train", lines.append)
    again = task.load("train", lines.append)
    assert len(lines) == 1
    assert isinstance(train.y, np.memmap)
    rows = np.array([5, 0, 5])
    x, y = again.take(rows)
    assert (x.dtype.name, x.shape, y.dtype.name, y.shape) == ("uint8", (3, WINDOW), "int64", (3,))
    assert np.array_equal(x, train.x[:6][rows])
    assert len(train) == len(train.x) == len(train.x[:])
    assert train.labels is not None
    assert np.array_equal(train.labels, train.y)
    inputs, targets = task.batch(torch.from_numpy(x), torch.from_numpy(y))
    assert (inputs.dtype, targets.dtype) == (torch.int64, torch.int64)
    assert inputs.tolist() == x.tolist()


def test_example_and_inputs_fit_the_model() -> None:
    task = Characters()
    assert dict(task.inputs()) == {"vocabulary": 80, "classes": 80, "window": 80}
    example = task.example(3)
    assert (example.shape, example.dtype, int(example.max())) == ((3, 80), torch.int64, 79)
    assert task.model_name() == "char_lstm"
    assert task.check_outputs(torch.zeros(3, 80), 3) is None


def refusal(task: Characters, split: Any = "train") -> tuple[str, str]:
    with pytest.raises(DataError) as error:
        task.load(split)
    assert str(error.value).startswith(f"{error.value.key}={error.value.value}: ")
    assert "\n" not in str(error.value)
    return error.value.key, error.value.code


@pytest.mark.parametrize("write", [write_texts, write_windows])
def test_a_device_trains_on_all_of_its_own_rows(tmp_path: Path, write: Any) -> None:
    own = Characters(window=WINDOW).local(write(tmp_path / "own", {"me": random_texts()["ROMEO"]}))
    assert len(own.load("train")) == 61 - WINDOW
    assert refusal(own, "test") == ("dataset.test_share", "characters")
    with pytest.raises(DataError) as error:
        Characters().local("/nowhere")
    assert (error.value.key, error.value.code, error.value.value) == ("data-path", "missing", "/nowhere")


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ({"character_id": ["a"], "words": ["x"]}, "dataset.text_column"),
        ({"role": ["a"], "text": ["x"]}, "dataset.group_column"),
        ({"character_id": ["a"], "text": ["123456"]}, "dataset.window"),
        ({"character_id": ["a"], "text": [3]}, "dataset.path"),
        ({"character_id": ["a"], "text": [None]}, "dataset.path"),
        ({"character_id": ["a"], "x": ["12345"], "y": ["6"]}, "dataset.window"),
        ({"character_id": ["a"], "x": ["123456"], "y": ["78"]}, "dataset.window"),
    ],
)
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, columns: dict[str, Any], key: str) -> None:
    path = write_rows(tmp_path / "data", columns)
    assert refusal(Characters(path=path, window=WINDOW))[0] == key
    (tmp_path / "data/train-00000-of-00001.parquet").write_bytes(b"PAR1")
    assert refusal(Characters(path=path, window=WINDOW)) == ("dataset.path", "unreadable")
    assert refusal(Characters(path=f"{path}/nowhere")) == ("dataset.path", "missing")


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the data sets that lie beside a development checkout")
def test_the_roles_of_all_plays() -> None:
    from pyarrow import parquet

    folder = SHARED / "shakespeare_roles"
    rows = parquet.read_table(folder / "train-00000-of-00001.parquet").to_pydict()
    texts = dict(zip(rows["character_id"], rows["text"], strict=True))
    train, test = (Characters(path=str(folder)).load(split) for split in ("train", "test"))  # type: ignore[arg-type]
    groups = np.asarray(train.groups)
    counts = np.array([len(texts[role]) - 80 for role in sorted(texts)])
    held_out = (counts * 0.2).astype(int)
    assert np.array_equal(np.bincount(groups), counts - held_out)
    assert np.array_equal(np.bincount(np.asarray(test.groups), minlength=len(texts)), np.maximum(held_out - 80, 0))
    text = texts[sorted(texts)[int(groups[3_000_000])]]
    place = 3_000_000 - int(np.searchsorted(groups, groups[3_000_000]))
    x, y = train.take(np.array([3_000_000]))
    assert x[0].tolist() == encode(text[place : place + 80]).tolist()
    assert y[0] == encode(text[place + 80])[0]
