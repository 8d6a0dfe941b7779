"""A round whose replies reach the server only as their sum, see `fedmrn_app/secure/`.

Each client adds its mask, a bit per weight, and its dense part as fixed-point numbers. All clients weigh the same.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.federation.pipeline import RoundSums, WeightedMean
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.federation.report import FailedReply, RoundReport, UsedReply
from fedmrn_app.federation.server import OpenRound, finish_round
from fedmrn_app.federation.upload import Update
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.secure.exchange import Ask, collect
from fedmrn_app.secure.fields import Field, Fields, Words, bits_for
from fedmrn_app.secure.graph import GraphSettings
from fedmrn_app.secure.keys import PUBLIC
from fedmrn_app.secure.messages import BINDING, HEADER_SIZE, SEALED, Envelope, PublicKeys
from fedmrn_app.secure.server import SecureServer
from fedmrn_app.wire.primitives import packed_bits

DENSE_BITS = 48  # of a dense value, sign included
FRACTION = 24  # binary places of a dense value, as many as float32 has for values near 1


def secure_fields(protocol: RunProtocol, summands: int) -> Fields:
    """Return the fields of a sum of so many clients: the counts of mask bits, and the dense part."""
    dense = sum(protocol.dense_sizes)
    return Fields((Field(protocol.layout.count, bits_for(summands)), Field(dense, DENSE_BITS)))


def round_binding(
    purpose: str, number: int, config: bytes, context: SharedContext, dense: Float32Array, seed: int = 0
) -> bytes:
    """Return the hash of what a client was sent, to which its pads are bound.

    Pads of clients that were sent different models do not cancel, so that a server cannot learn the reply of one client
    by sending the others a model from which they learn nothing (Pasquini, Francati and Ateniese 2022, "Eluding Secure
    Aggregation in Federated Learning via Model Inconsistency").

    Args:
        purpose: what the sum is for.
        number: of the round.
        config: the run's configuration as it is sent.
        context: what the client knows after it was sent the model.
        dense: the dense part as it was sent, float32 (m,).
        seed: of the noise that all clients mask; 0 where each client has its own.
    """
    digest = hashlib.sha256(f"fedmrn secure binding {purpose} {number} {seed} {context.scale!r}".encode())
    # distances from the initial model where there are any, whose last bits do not depend on the processor
    vector = context.vector
    if (moved := context.moved) is not None:
        vector = np.concatenate([moved(tensor, slice(None)) for tensor in range(len(context.layout.sizes))])
    for part in (hashlib.sha256(config).digest(), vector + np.float32(0), dense + np.float32(0)):
        data = part if isinstance(part, bytes) else np.ascontiguousarray(part, "<f4").tobytes()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def opened_binding(opened: OpenRound, config: bytes, purpose: str = "train") -> bytes:
    """Return the binding of the clients of a round, see `round_binding`."""
    client = next(iter(opened.clients))
    seed = opened.seed(client) if opened.protocol.method.shared_seed else 0
    return round_binding(purpose, opened.number, config, opened.context(client), opened.dense, seed)


def max_secure_bytes(protocol: RunProtocol, clients: int) -> int:
    """Return the largest number of bytes of a client's message in a sum of so many clients."""
    degree = GraphSettings().degree(clients)
    return HEADER_SIZE + BINDING + max(secure_fields(protocol, clients).size, PUBLIC + 4 + degree * (4 + SEALED))


def secure_input(protocol: RunProtocol, update: Update, summands: int) -> tuple[Fields, list[Words]]:
    """Return the fields of a sum, and a client's integers.

    Raises:
        PayloadError: the dense part is too large for fixed-point numbers.
    """
    fields = secure_fields(protocol, summands)
    masks, _ = fields
    update.body.must_be_plain()
    bits = packed_bits(update.body.data, masks.count)
    mask = np.unpackbits(bits, count=masks.count, bitorder="little").astype(masks.dtype)
    return fields, [mask, to_fixed_point(update.dense, summands)]


def to_fixed_point(values: Float32Array, summands: int) -> Words:
    """Return values (m,) as whole multiples of 2^-24, in two's complement, uint64 (m,).

    Raises:
        PayloadError: a value is so large that the sum of `summands` such values would wrap around.
    """
    limit = ((1 << DENSE_BITS - 1) - 1) // summands
    largest = float(np.abs(values).max(initial=np.float32(0)))
    if not largest * (1 << FRACTION) <= limit:  # also refuses NaN
        reason = f"a bias or statistic is {largest:.3g}; secure sums hold at most {math.ldexp(limit, -FRACTION):.3g}"
        raise PayloadError(reason, code="secure-range", value=largest)
    steps: NDArray[np.int64] = np.rint(np.ldexp(values.astype(np.float64), FRACTION)).astype(np.int64)
    return steps.view(np.uint64)


def from_fixed_point(words: Words) -> Float32Array:
    """Return the values (m,) of a sum of `to_fixed_point`, taken modulo 2^48."""
    spare = 64 - DENSE_BITS
    steps = (words << np.uint64(spare)).view(np.int64) >> np.int64(spare)
    return np.ldexp(steps.astype(np.float64), -FRACTION).astype(np.float32)


def secure_round(
    opened: OpenRound,
    ask: Ask,
    *,
    settings: GraphSettings | None = None,
    config: bytes = b"",
    check: Callable[[Envelope, PublicKeys], None] | None = None,
) -> tuple[GlobalState, RoundReport]:
    """Run one attempt at a round.

    Args:
        opened: the round.
        ask: sends each client its message of a phase, beside the order in the phase `masked`, and returns the answers.
        settings: of the graph of neighbours.
        config: the run's configuration as clients are sent it, to which their pads are bound.
        check: of clients' keys, see `SecureServer`.

    Returns:
        The next global model, and the report of the round.

    Raises:
        RunError: too few clients are left, so that nothing is known of the sum; or the sum is not one of masks; or the
            new global model is not finite.
    """
    fields, binding = partial(secure_fields, opened.protocol), opened_binding(opened, config)
    server = SecureServer(opened.number, list(opened.clients), fields, settings, binding=binding, check=check)
    failed = collect(server, list(opened.clients), ask)
    start = time.perf_counter()
    clients, (counts, dense) = server.unmask()
    if counts.max(initial=0) > len(clients):
        reason = f"round {opened.number}: the secure sum exceeds {len(clients)}, so a client did not send a mask"
        raise RunError(reason, code="secure-sum")
    used = [UsedReply(client=one, loss=math.nan, train_seconds=math.nan, compress_seconds=math.nan) for one in clients]
    gone = [FailedReply(one, str(error)) for one, error in failed.items() if one not in set(clients)]
    report = RoundReport(opened.number, used=used, failed=gone)
    sums = RoundSums(counts.astype(np.float32), from_fixed_point(dense), opened.dense, opened.state.rate_state)
    mean, *others = opened.post_processors()
    assert isinstance(mean, WeightedMean)
    mean.weight = len(clients)
    state = finish_round(opened, report, sums, [mean, *others])
    report.decode_seconds = time.perf_counter() - start
    return state, report
