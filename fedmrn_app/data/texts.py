"""Texts as rows of token ids, without a vocabulary that would have to be shared or downloaded.

`words` numbers each word by a hash of its letters (the hashing trick, Weinberger et al. 2009); `characters` numbers the
bytes of UTF-8. The id 0 fills up short texts at their beginning. In scripts that put no spaces between words, such as
Chinese, Japanese and Thai, each character counts as a word.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.rows import Tokenizer

VOCABULARY: Mapping[Tokenizer, int] = {"words": 4096, "characters": 257}  # different ids by default
LONGEST: Mapping[Tokenizer, int] = {"words": 64, "characters": 256}  # tokens of a row by default
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+|[^\w\s]")


def tokens_of(text: str, tokenizer: Tokenizer, vocabulary: int) -> list[int]:
    """Return the ids of a text, each from 1 to `vocabulary - 1`; words are compared in lower case."""
    if tokenizer == "characters":
        return [byte % (vocabulary - 1) + 1 for byte in text.encode()]
    return [zlib.crc32(word.encode()) % (vocabulary - 1) + 1 for word in _WORD.findall(text.lower())]


def encode_texts(
    texts: Sequence[str | None], tokenizer: Tokenizer, vocabulary: int, window: int | None
) -> NDArray[np.int64]:
    """Return the last `window` tokens of each text, int64 (n, window), with zeros before those of shorter texts.

    Args:
        texts: the texts; a missing one has no tokens.
        tokenizer: what a token is.
        vocabulary: number of different ids, the 0 included.
        window: number of tokens of a row; None for the longest text, at most `LONGEST`.
    """
    rows = [tokens_of(text or "", tokenizer, vocabulary) for text in texts]
    window = window or max(1, min(LONGEST[tokenizer], max(map(len, rows), default=1)))
    ids = np.zeros((len(rows), window), np.int64)
    for row, tokens in enumerate(rows):
        if kept := tokens[-window:]:
            ids[row, -len(kept) :] = kept
    return ids


def cut_off(texts: Sequence[str | None], tokenizer: Tokenizer, window: int) -> int:
    """Return the number of texts with more than `window` tokens, of which only the last ones are read."""
    return sum(len(tokens_of(text or "", tokenizer, 3)) > window for text in texts)
