"""FedProx's term under learned masks.

FedProx (Li et al. 2020, arXiv:1812.06127) adds mu / 2 |p - q|^2 to a client's loss, with the weights p and those that
were sent, q. Its gradient mu (p - q) is meant to pull what has been learned back. A forward pass sees masked noise
instead, which is several times as long as what has been learned, so that the term would pull at the noise.

Let r be what the masks show beyond what has been learned, without its part along the learned update. The signs of r
are those of the noise, which no gradient of the data knows, so that the gradient's part along r is the term's. That
share of r, at most mu, is taken off the gradient, which is then the one at the learned weights. A loss without the term
has next to no such part, and keeps its gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from flwr.app import RecordDict
from torch import Tensor

PROXIMAL = "proximal-mu"  # what Flower's FedProx calls mu in a message


def read_mu(content: RecordDict) -> float:
    """Return the mu of FedProx in a message; 0 if it has none."""
    records = cast(Sequence[Mapping[str, Any]], list(content.config_records.values()))
    return max((float(record[PROXIMAL]) for record in records if PROXIMAL in record), default=0.0)


def at_learned_weights(grad: Tensor, shown: Tensor, u: Tensor, mu: float) -> Tensor:
    """Return the gradient of one tensor's loss with FedProx's term at the learned weights, and not at the masked ones.

    Args:
        grad: of the loss at the masked weights.
        shown: the masked weights minus those that were sent.
        u: the learned update.
        mu: of the term; the unsquared norm of Flower's example has mu / (2 |p - q|).
    """
    noise = shown - u
    size = float(torch.sum(u * u))
    along = float(torch.sum(noise * u)) / size if size > 0 else 0.0
    random = noise - along * u
    norm = float(torch.sum(random * random))
    if not norm > 0:
        return grad
    share = float(torch.sum(grad * random)) / norm
    most = max(mu, mu / (2 * float(shown.norm())))
    return grad - min(max(share, 0.0), most) * noise
