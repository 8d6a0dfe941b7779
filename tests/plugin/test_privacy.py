"""Flower's wrappers for privacy: the server's decoded updates keep the bound, or the client says why it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM
from torch import Tensor, nn

from fedmrn_app.errors import RunError
from fedmrn_app.plugin import Compressed, MaskedSGD, compress_uplink
from fedmrn_app.plugin.client_round import CLIPPING_NORM
from tests.plugin_app import NODES, STEPS, LocalGrid, Train, new_app, new_net, plain, run_steps

BOUND = 0.05
METHODS = ["eden", "drive", "signsgd", "topk", "terngrad", "quantized", "fedavg"]
EDEN_BITS: list[dict[str, Any]] = [{}, {"bits": 4}, {"error_feedback": True}]


class Look(FedAvg):
    """Keeps the norms of the updates that it is given, and the bounds that were sent for them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(fraction_evaluate=0.0, min_available_nodes=3, min_train_nodes=3, **options)
        self.norms: list[float] = []
        self.bounds: list[float] = []

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any) -> Iterable[Message]:
        self.sent, self.bound = arrays, config.get("clipping_norm")
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        for reply in (reply for reply in replies if reply.has_content()):
            self.norms.append(norm_between(reply.content.array_records["arrays"], self.sent))
            self.bounds.append(self.bound)
        return super().aggregate_train(server_round, replies)


def norm_between(arrays: ArrayRecord, others: ArrayRecord) -> float:
    squares = [np.sum((array.numpy().astype(np.float64) - others[name].numpy()) ** 2) for name, array in arrays.items()]
    return float(np.sqrt(np.sum(squares)))


def fixed(strategy: Strategy) -> Strategy:
    return DifferentialPrivacyClientSideFixedClipping(strategy, 1e-3, BOUND, 3)


def adaptive(strategy: Strategy) -> Strategy:
    """The bound changes from round to round."""
    return DifferentialPrivacyClientSideAdaptiveClipping(
        strategy, 1e-3, 3, initial_clipping_norm=BOUND, target_clipped_quantile=0.1, clipped_count_stddev=1e-3
    )


def run(
    strategy: Strategy, mods: list[Any], train: Train = plain, *, rounds: int = 2, batch_norm: bool = False
) -> LocalGrid:
    grid = LocalGrid(new_app(train, mods))
    strategy.start(grid, ArrayRecord(new_net(batch_norm=batch_norm).state_dict()), num_rounds=rounds)  # type: ignore[arg-type]
    return grid


WRAPPERS = [(fixed, fixedclipping_mod), (adaptive, adaptiveclipping_mod)]


def test_name_of_the_bound_is_flowers() -> None:
    assert CLIPPING_NORM == KEY_CLIPPING_NORM


@pytest.mark.parametrize(("wrap", "mod"), WRAPPERS)
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("eden", {}),
        *(pytest.param(method, {}, marks=pytest.mark.slow) for method in METHODS[1:]),
        *(pytest.param("eden", options, marks=pytest.mark.slow) for options in EDEN_BITS[1:]),
    ],
)
def test_decoded_updates_keep_the_norm_that_clients_clip_to(
    method: str, options: dict[str, Any], wrap: Callable[[Strategy], Strategy], mod: Any
) -> None:
    look = Look()
    grid = run(Compressed(wrap(look), method, options=options), [compress_uplink, mod], rounds=3)
    assert not grid.failures
    assert len(look.norms) == 9
    assert (len(set(look.bounds)) == 1) == (wrap is fixed)
    assert all(0.3 * bound < norm <= bound for norm, bound in zip(look.norms, look.bounds, strict=True))


def test_bound_holds_without_the_mod_and_with_counters() -> None:
    """A client that lacks Flower's mod clips too; batch norm's counter counts in the norm, as it does in Flower."""
    look = Look()
    grid = run(Compressed(fixed(look), "eden"), [compress_uplink], rounds=1, batch_norm=True)
    assert not grid.failures
    assert len(look.norms) == 3
    assert all(norm <= BOUND for norm in look.norms)


def test_updates_below_the_bound_are_sent_as_they_are() -> None:
    wide, none = Look(), Look()
    run(Compressed(DifferentialPrivacyClientSideFixedClipping(wide, 0.0, 50.0, 3), "eden"), [compress_uplink], rounds=1)
    run(Compressed(none, "eden"), [compress_uplink], rounds=1)
    assert wide.norms == none.norms


@pytest.mark.parametrize("on_difference", ["error", "eden"])
@pytest.mark.parametrize(("wrap", "mod"), WRAPPERS)
def test_learned_masks_are_refused_where_clients_clip(
    wrap: Callable[[Strategy], Strategy], mod: Any, on_difference: Any
) -> None:
    def train(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
        run_steps(net, MaskedSGD(net, message, 0.1, steps=STEPS, on_difference=on_difference), x, y)

    look = Look()
    grid = LocalGrid(new_app(train, [compress_uplink, mod]))
    with suppress(ZeroDivisionError):  # Flower's adaptive strategy divides by the number of replies, which is zero
        strategy = Compressed(wrap(look), "fedmrn", max_failed_rounds=1)
        strategy.start(grid, ArrayRecord(new_net().state_dict()), num_rounds=1)  # type: ignore[arg-type]
    assert look.norms == []
    assert set(grid.failures) == set(NODES)
    error = grid.failures[NODES[0]]
    assert isinstance(error, RunError)
    assert (error.code, error.value) == ("clipping", BOUND)


@pytest.mark.parametrize("mod", [fixedclipping_mod, adaptiveclipping_mod, LocalDpMod(1.0, 1.0, 1.0, 1e-5)])
def test_mods_in_the_wrong_order_fail_and_send_nothing(mod: Any) -> None:
    """Around the plug-in's mod they see no arrays, and answer with an error."""
    look = Look()
    with pytest.raises(RunError) as ended:
        run(Compressed(fixed(look), "eden"), [mod, compress_uplink], rounds=1)
    assert ended.value.code == "all-failed"
    assert look.norms == []


@pytest.mark.parametrize("kind", [DifferentialPrivacyServerSideFixedClipping, "adaptive"])
@pytest.mark.parametrize("method", ["eden", "fedmrn"])
def test_server_side_clipping_sees_decoded_updates(kind: Any, method: str) -> None:
    def train(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
        if method == "eden":
            return plain(net, message, x, y)
        return run_steps(net, MaskedSGD(net, message, 0.1, steps=STEPS), x, y)

    look = Look()
    if kind == "adaptive":
        wrapped: Strategy = DifferentialPrivacyServerSideAdaptiveClipping(look, 1e-3, 3, initial_clipping_norm=BOUND)
    else:
        wrapped = kind(look, 1e-3, BOUND, 3)
    run(Compressed(wrapped, method, alpha=0.1), [compress_uplink], train, rounds=1)
    assert len(look.norms) == 3
    assert all(0.99 * BOUND < norm < 1.0001 * BOUND for norm in look.norms)


SIGMA = 0.05
LOCAL = LocalDpMod(BOUND, SIGMA / np.sqrt(2 * np.log(1.25 / 1e-5)), 1.0, 1e-5)


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("method", METHODS)
def test_local_noise_is_in_what_is_sent(method: str) -> None:
    """What is sent is a function of the noised arrays and of random numbers, and the noise outweighs the update."""
    returned: list[ArrayRecord] = []

    def remember(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        returned.append(reply.content.array_records["arrays"])
        return reply

    def replay(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        reply.content["arrays"] = returned[NODES.index(message.metadata.dst_node_id)]
        return reply

    def run_with(mods: list[Any], train: Train) -> tuple[list[bytes], Look]:
        payloads: list[bytes] = []

        def keep(message: Message, context: Context, call_next: Any) -> Message:
            reply: Message = call_next(message, context)
            payloads.append(bytes(reply.content.config_records["arrays"][""]))  # type: ignore[arg-type]
            return reply

        look = Look()
        assert not run(Compressed(look, method), [keep, compress_uplink, *mods], train, rounds=1).failures
        return payloads, look

    sent, look = run_with([remember, LOCAL], plain)
    again, _ = run_with([replay], lambda *_: None)
    assert sent == again
    first = ArrayRecord(new_net(batch_norm=False).state_dict())
    noise = SIGMA * np.sqrt(sum(array.numpy().size for array in first.values()))
    assert all(abs(norm_between(arrays, first) / noise - 1) < 0.1 for arrays in returned)
    least = {"drive": 0.7, "signsgd": 0.5, "topk": 0.3}.get(method, 0.95)
    assert all(norm > least * noise for norm in look.norms)


@pytest.mark.parametrize("on_difference", ["error", "eden"])
def test_local_noise_and_learned_masks(on_difference: Any) -> None:
    """Masks do not carry the noise: they are refused, or replaced by EDEN's code of the noised arrays."""

    def train(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
        run_steps(net, MaskedSGD(net, message, 0.1, steps=STEPS, on_difference=on_difference), x, y)

    look = Look()
    grid = run(Compressed(look, "fedmrn", bits=1.0, max_failed_rounds=2), [compress_uplink, LOCAL], train, rounds=2)
    if on_difference == "eden":
        assert not grid.failures
        count = sum(array.numel() for array in new_net(batch_norm=False).state_dict().values())
        assert all(norm > 0.95 * SIGMA * count**0.5 for norm in look.norms)
        assert len(look.norms) == 6
    else:
        assert look.norms == []
        error = grid.failures[NODES[0]]
        assert isinstance(error, RunError)
        assert error.code == "difference"
        assert "LocalDpMod" in str(error)
