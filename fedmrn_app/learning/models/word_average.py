"""A classifier of texts by the mean of their words' vectors (Joulin et al. 2017, fastText), with a hidden layer."""

from __future__ import annotations

from torch import Tensor, nn

from fedmrn_app.validation import Count


class WordAverage(nn.Module):
    """An embedding, the mean over the words of a text, and two linear layers."""

    def __init__(self, table: nn.Embedding, layers: nn.Sequential) -> None:
        super().__init__()
        self.table = table
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        """Map ids, int64 (n, window), where 0 is no word, to logits, float (n, classes)."""
        words = (x > 0).unsqueeze(-1)
        mean = (self.table(x) * words).sum(1) / words.sum(1).clamp(min=1)
        logits: Tensor = self.layers(mean)
        return logits


def word_average(
    vocabulary: int, classes: int, *, embedding: Count = 32, hidden: Count = 64, masked_embedding: bool = False
) -> nn.Module:
    """Build the network.

    The linear layers are masked. The embedding is not: a client changes the rows of its own words only, and those of
    all others are short in a reply.

    Args:
        vocabulary: number of different ids, the 0 included.
        classes: number of outputs.
        embedding: length of a word's vector.
        hidden: units of the hidden layer.
        masked_embedding: whether the embedding is masked like the other weights.
    """
    table = nn.Embedding(vocabulary, embedding)
    if masked_embedding:
        table.masked_weights = True  # type: ignore[assignment]
    return WordAverage(table, nn.Sequential(nn.Linear(embedding, hidden), nn.ReLU(), nn.Linear(hidden, classes)))
