"""Shares of a Dirichlet distribution so uneven that clients would have too few rows, of which some are then moved."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from fedmrn_app.data.samples import Rows


def uneven_shares(
    labels: Rows, alpha: float, clients: int, *, balanced: bool, random: np.random.Generator
) -> list[Rows]:
    """Share out the rows of each label by a Dirichlet distribution, for any `alpha` above 0.

    Args:
        labels: int64 (n,), the label of each row.
        alpha: concentration of the distribution.
        clients: number of clients.
        balanced: whether a client that has more than an even share of all rows gets no further ones (NIID-Bench).
        random: draws the shares.

    Returns:
        The row numbers of each client, int64; some clients may have none.
    """
    parts: list[list[Rows]] = [[] for _ in range(clients)]
    sizes = np.zeros(clients, np.int64)
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        shares = random.dirichlet(np.full(clients, alpha))
        if balanced:
            shares = np.where(sizes > len(labels) / clients, 0, shares)
        if not (np.isfinite(shares).all() and shares.sum() > 0):  # so small an alpha that one client has all
            open_clients = np.flatnonzero(sizes <= len(labels) / clients) if balanced else np.arange(clients)
            shares = np.eye(clients)[random.choice(open_clients)]
        ends = (np.cumsum(shares / shares.sum()) * len(rows)).astype(np.int64)
        for client, part in enumerate(np.split(rows, ends[:-1])):
            parts[client].append(part)
            sizes[client] += len(part)
    return [np.concatenate(part) for part in parts]


def move_rows(parts: Sequence[Rows], least: int) -> tuple[list[Rows], int, int]:
    """Move rows from the largest clients to those that have fewer than `least`, one at a time.

    Args:
        parts: the rows of each client, of which the last ones are moved; together at least `least` for each client.
        least: number of rows of each client.

    Returns:
        The rows of each client, and the numbers of clients and of rows that were moved to them.
    """
    given = [list(part) for part in parts]
    largest = [(-len(rows), client) for client, rows in enumerate(given)]
    heapq.heapify(largest)
    poor = [client for client, rows in enumerate(given) if len(rows) < least]
    moved = 0
    for client in poor:
        while len(given[client]) < least:
            _, donor = heapq.heappop(largest)
            given[client].append(given[donor].pop())
            heapq.heappush(largest, (-len(given[donor]), donor))
            moved += 1
    return [np.array(rows, np.int64) for rows in given], len(poor), moved
