"""What command lines of several tools have in common."""

from __future__ import annotations

import sys


def own_words_and_overrides() -> tuple[list[str], list[str]]:
    """Return the words of the command line before `--`, and the overrides of a run after it."""
    words = sys.argv[1:]
    if "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]
