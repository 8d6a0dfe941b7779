"""Texts as token ids: what a word is, in scripts with and without spaces between words."""

import pytest

from fedmrn_app.data.texts import encode_texts, tokens_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Good movie, it's naïve!", ["good", "movie", ",", "it", "'", "s", "naïve", "!"]),
        ("한국어 텍스트", ["한국어", "텍스트"]),
        ("电影很好。great", ["电", "影", "很", "好", "。", "great"]),
        ("日本語のテスト", list("日本語のテスト")),
        ("ไทย ok", ["ไ", "ท", "ย", "ok"]),
        ("", []),
    ],
)
def test_words_are_separated_by_spaces_or_are_single_characters(text: str, words: list[str]) -> None:
    expected = [token for word in words for token in tokens_of(word, "words", 4096)]
    assert len(expected) == len(words)
    assert tokens_of(text, "words", 4096) == expected


def test_texts_are_filled_up_and_cut_at_their_beginning() -> None:
    a, b, c = (tokens_of(word, "words", 4096)[0] for word in "abc")
    assert encode_texts(["a b c", "b", None], "words", 4096, 2).tolist() == [[b, c], [0, b], [0, 0]]
    assert encode_texts(["a b c", "b"], "words", 4096, None).tolist() == [[a, b, c], [0, 0, b]]
