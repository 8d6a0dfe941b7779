"""The names that people give to the splits of their data, as the names of this package: train, val and test."""

from __future__ import annotations

import re
from collections.abc import Iterable

WORDS = {
    "train": ("train", "training", "trn"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "tst"),
}
_SPLITS = {word: split for split, words in WORDS.items() for word in words}
# as the hub names files: train-00000-of-00001.parquet, data/test/0.parquet; or split=train/ in Hive's folders
_FILES = {split: re.compile(rf"(^|[-._ /=])({'|'.join(words)})[-._ /]") for split, words in WORDS.items()}


_HOLDOUT = re.compile(r"(^|[-._ /])((hold|held)[-_ ]?out|eval|evaluation)[-._ /]")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # where a word begins, as in irisTest


def _words(path: str) -> str:
    return _CAMEL.sub("_", path).lower()


def split_of_name(name: str) -> str | None:
    """Return the split that a folder or a part of a data set is called by; None if its name is none of a split."""
    return _SPLITS.get(name.lower())


def split_of_file(path: str) -> str | None:
    """Return the split that a file's path below the data's folder names; None if it names none."""
    return next((split for split, pattern in _FILES.items() if pattern.search(_words(path))), None)


def may_be_held_out(path: str) -> bool:
    """Return whether a file's path has a word for rows that are not trained on, which is the name of no split."""
    return bool(_HOLDOUT.search(_words(path)))


def splits_of_names(names: Iterable[str]) -> dict[str, str]:
    """Return the name of each split among some names, by split; of several names of one split the first counts."""
    found: dict[str, str] = {}
    for name in names:
        if split := split_of_name(name):
            found.setdefault(split, name)
    return found
