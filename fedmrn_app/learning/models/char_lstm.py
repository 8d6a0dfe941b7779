"""An LSTM that predicts the next character, of LEAF (Caldas et al. 2018) and of FedMRN's Table 3 (Li et al. 2024)."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from fedmrn_app.validation import Count, Positive, Range


class CharLSTM(nn.Module):
    """An embedding, an LSTM, and a linear layer on the LSTM's last state."""

    def __init__(self, embedding: nn.Embedding, lstm: nn.LSTM, dropout: float, linear: nn.Linear) -> None:
        super().__init__()
        self.embedding = embedding
        self.lstm = lstm
        self.dropout = nn.Dropout(dropout)
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        """Map characters, int64 (n, window), to logits of the next character, float (n, classes)."""
        states, _ = self.lstm(self.embedding(x))
        logits: Tensor = self.linear(self.dropout(states[:, -1]))
        return logits


def char_lstm(
    vocabulary: int,
    classes: int,
    *,
    embedding: Count = 8,
    units: Count = 256,
    layers: Annotated[int, Range(least=1, most=8)] = 2,
    bias: bool = True,
    dropout: Annotated[float, Range(least=0, below=1)] = 0.0,
    initial_std: Positive | None = None,
    masked_embedding: bool = False,
) -> nn.Module:
    """Build the network.

    The defaults are LEAF's model: two layers with biases, Glorot's initial weights, forget gates that start open.
    FedMRN's published code has one layer, no biases, dropout of 0.5 before the linear layer and all weights from
    N(0, 0.01^2): `layers=1 bias=false dropout=0.5 initial_std=0.01`. Both have an embedding of 8 and 256 units.
    The weights of the LSTM and of the linear layer are masked; biases, and the embedding as in that code, are not.

    Args:
        vocabulary: number of characters in the inputs.
        classes: number of characters in the targets.
        embedding: length of a character's vector.
        units: number of units of a layer.
        layers: number of layers.
        bias: whether the LSTM's gates, one bias each, and the linear layer have biases.
        dropout: share of the last state that is set to zero in training.
        initial_std: standard deviation of all initial weights; null for Glorot's.
        masked_embedding: whether the embedding is masked like the other weights.
    """
    table = nn.Embedding(vocabulary, embedding)
    if masked_embedding:
        table.masked_weights = True  # type: ignore[assignment]
    lstm = nn.LSTM(embedding, units, layers, bias=bias, batch_first=True)
    module = CharLSTM(table, lstm, dropout, nn.Linear(units, classes, bias=bias))
    for name, parameter in module.named_parameters():
        if parameter.dim() < 2:
            nn.init.zeros_(parameter)
        elif initial_std is None:
            nn.init.xavier_uniform_(parameter)
        else:
            nn.init.normal_(parameter, std=initial_std)
        if ".bias_hh" in name:  # PyTorch's second bias of each gate, fixed at TensorFlow's constant forget bias
            nn.init.ones_(parameter.data[units : 2 * units])
            parameter.requires_grad_(False)
    return module
