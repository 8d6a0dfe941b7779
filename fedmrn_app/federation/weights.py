"""What each client counts in the mean of a round, where its payload's number of samples does not decide alone."""

from __future__ import annotations

from collections.abc import Mapping

from fedmrn_app.federation.protocol import RunProtocol


def round_weights(protocol: RunProtocol, samples: Mapping[int, int]) -> Mapping[int, float] | None:
    """Return the weights of the clients of a round; None where `RunProtocol.weight` of each payload is the weight.

    Args:
        protocol: of the run.
        samples: the number of samples that each client states.
    """
    if protocol.equal_weights or (protocol.confirmed is None and protocol.max_share is None):
        return None
    counts = counted_samples(protocol, samples)
    return counts if protocol.max_share is None else limit_shares(counts, protocol.max_share)


def counted_samples(protocol: RunProtocol, samples: Mapping[int, int]) -> Mapping[int, int]:
    """Return the operator's numbers of samples, or those that clients state where there are none."""
    return samples if protocol.confirmed is None else {client: protocol.confirmed[client] for client in samples}


def limit_shares(counts: Mapping[int, float], max_share: float) -> dict[int, float]:
    """Return weights of which none is more than a share of their sum.

    The largest counts are lowered to one common value, and the others stay as they are. If there are so few clients
    that each has at least this share, all weigh the same.

    Args:
        counts: positive weights, by client.
        max_share: the largest share, above 0 and below 1.
    """
    rest = sum(counts.values())
    for lowered, largest in enumerate(sorted(counts.values(), reverse=True)):
        left = 1 - lowered * max_share  # the share of those that are not lowered
        if left <= 0:
            break
        limit = max_share * rest / left
        if largest <= limit:
            return {client: min(count, limit) for client, count in counts.items()}
        rest -= largest
    return dict.fromkeys(counts, 1.0)


def lowered_shares(counts: Mapping[int, float], weights: Mapping[int, float]) -> dict[int, float]:
    """Return the share by its count of each client whose share by its weight is smaller."""
    all_counts, all_weights = sum(counts.values()), sum(weights.values())
    shares = {client: count / all_counts for client, count in counts.items()}
    return {client: share for client, share in shares.items() if share > weights[client] / all_weights * (1 + 1e-9)}
