"""The options of `Compressed` and `compressed_grid`: their meaning, their checks, and which have no effect."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypedDict

import numpy as np

from fedmrn_app.federation.budget import Schedule
from fedmrn_app.noise import Distribution
from fedmrn_app.plugin.exchange import Exchange
from fedmrn_app.plugin.fidelity import uses_norms, uses_single
from fedmrn_app.plugin.settings import DEFAULT_METHOD, default_method
from fedmrn_app.validation import check_call, refusal

_log = logging.getLogger("flwr")


class Options(TypedDict, total=False):
    """The options of `Compressed` and `compressed_grid`.

    Attributes:
        bits: bits per parameter that a whole reply is to take; the scale of the noise is set accordingly. Only methods
            that learn masks allow it. None, the default, keeps the scale.
        noise: distribution of the seeded noise: `uniform` (default), `gaussian` or `bernoulli`.
        alpha: scale of the noise, about the size of one round's updates; with `bits` the first scale follows from it
            (0.01). `auto`, the default where it is possible, lets each client set the scale of each tensor by what it
            learns, up to about twice the root mean square of the tensor's weights; it excludes `bits` and `secure`, and
            needs uniform noise and stochastic masks.
        dense_bits: bits per value of the dense part: 4 to 8 (6), 16 (float16) or 32 (float32, the default of `fedavg`).
        seed: seed of all noise (0).
        downlink: `float32` (default) sends the arrays as they are. `grid` rounds them to a grid around the first arrays
            and sends what has changed since the version that a client holds; a new client is sent the first arrays too.
            `quantized` sends only changes that are worth their bits, and the rest with later ones.
        step: step of that grid for a tensor of mean size, in root mean squares of the first values (1/4, or 1/8
            for `quantized`, which holds back changes of less than about half a step).
        options: options of the method, such as `{"bits": 2}` for `eden`.
        plain_replies: whether the replies of clients without the mod, or with one of another version, count (True).
        max_failed_rounds: number of rounds in a row in which all clients may fail; one more ends the run. 0 by default;
            None, any number, is the default of `compressed_grid`, whose loop sees each error.
        reply: what clients reply with. `auto` (default) takes each array for weights, or for a difference from what was
            sent where it is much shorter than that; `difference` says that all are differences, such as gradients.
        budget: bits per parameter that a whole reply is to take in the mean over all rounds; for `topk`, `fedmrn`,
            `fedmrns` and `quantized`, the method where none is named. It excludes sizes of single rounds. `Compressed`
            divides it over the `num_rounds` of `start`; `compressed_grid` does not know their number.
        schedule: how a budget is divided (`auto`), see `docs/budget.md`.
        state: what `state()` returned in a run that this one continues.
        secure: whether the server learns only the sum of a round's updates (False); for `fedavg`, `fedmrn`, `fedmrns`.
        secure_bits: bits of one client's change of a value in a secure sum that no mask stands for, 8 to 32 (24).
        secure_bound: size to which such a change is cut (8); the step is the bound divided by 2^(secure_bits - 1).
    """

    bits: float | None
    noise: Distribution
    alpha: float | Literal["auto"]
    dense_bits: int
    seed: int
    downlink: str
    step: float
    options: Mapping[str, Any] | None
    plain_replies: bool
    max_failed_rounds: int | None
    reply: Literal["auto", "difference"]
    budget: float | None
    schedule: Schedule
    state: Mapping[str, Any] | None
    secure: bool
    secure_bits: int
    secure_bound: float


def new_exchange(method: str | None, options: Options, strategy: object = None) -> Exchange:
    """Return the compression of a run, and log a line for each option that is given and has no effect.

    Args:
        method: of the run; None for the default.
        options: of the run.
        strategy: that aggregates replies; None if it is not known.

    Raises:
        ConfigError: an option is unknown, has a wrong type or is out of range, or `Exchange` refuses it.
    """
    given = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
    alpha = given.get("alpha")
    if isinstance(alpha, str) and alpha != "auto":
        raise refusal("alpha", alpha, "must be a number, or auto", "choice")
    name = method or default_method(given)
    if hidden := sorted({"even", "single"} & set(given)):
        raise refusal(hidden[0], given[hidden[0]], "is no option; leave it out", "unknown")
    if method is None and name == DEFAULT_METHOD:
        given |= {"even": True, "single": uses_single(strategy)}
    exchange = Exchange(**check_call(Exchange, {"method": name, **given}, ""))
    if uses_norms(strategy) and not given.get("even") and name != "fedavg":
        reason = f"{name} makes updates longer, and QFedAvg's steps shorter with them, so that less is learned"
        _log.warning("Compressed: %s; leave method, options and budget out for three bits per value", reason)
    for line in _remarks(given, exchange):
        _log.warning("Compressed: %s", line)
    return exchange


def _remarks(given: Mapping[str, Any], exchange: Exchange) -> Iterator[str]:
    """Yield a line for each option that has no effect."""
    settings = exchange.settings
    if not exchange.has_noise:
        reason = f'{settings.method} masks no noise; say method="fedmrn", or leave it out'
        yield from (
            f"{name}={given[name]} has no effect because {reason}" for name in ("alpha", "noise") if name in given
        )
    if "step" in given and given.get("downlink", "float32") == "float32":
        reason = 'the arrays are sent as they are; say downlink="grid" or downlink="quantized", or leave it out'
        yield f"step={given['step']} has no effect because {reason}"
    if settings.options.get("error") is not None and "bits" in settings.options:
        yield f"options={settings.options}: bits has no effect because error replaces it; leave one of the two out"
    if settings.bits is None and (given.get("state") or {}).get("rate") is not None:
        yield "the noise scale in state has no effect because bits is not given; say bits as in the run before"
