"""A budget of bits for a whole run of somebody's app, which `federation/budget.py` divides over the rounds.

The server tells each round's clients a size as the options of the method, which clients of any version can read, and
notes what their replies have taken, with Flower's framing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedmrn_app.errors import ConfigError
from fedmrn_app.federation.budget import ERROR_POWER, Budget, BudgetState, Schedule
from fedmrn_app.methods.rate_control import RateControl, error_power, least_mask_bits, most_mask_bits
from fedmrn_app.methods.shared_context import LEAST_BITS
from fedmrn_app.plugin.arrays import Values, Way, usual_ways
from fedmrn_app.plugin.pairs import in_pairs
from fedmrn_app.plugin.replies import Spent
from fedmrn_app.plugin.settings import PluginSettings

_FRAMING = 400  # bytes of a reply beside its arrays, before one is seen
_LEAST_BODY = 0.2  # bits per coded weight of `quantized`; with less, tensors would be lost and be coded more finely
_SMALL_PART = 1 / 3  # of the bits beside the body, below which the body counts as small
_log = logging.getLogger("flwr")
_SIZES = ("bits", "error", "ratio")  # options of methods that the budget replaces


@dataclass
class RunBudget:
    """The budget of a run, and what has been spent of it.

    Attributes:
        bits: per parameter of a reply, in the mean over the rounds.
        schedule: how they are divided, see `federation/budget.py`.
        rounds: number of rounds of the run; 0 if it is not known.
        spent: what has been spent.
        share: bits per parameter that a reply of this round is to take.
        beside: bits per parameter of a reply outside of the method's body; None before the first round.
        parameters, count: floating-point values of the arrays, and those among them that the method codes.
    """

    bits: float
    schedule: Schedule = "auto"
    rounds: int = 0
    spent: BudgetState = field(default_factory=BudgetState)
    share: float = 0.0
    beside: float | None = None
    parameters: int = 1
    count: int = 1
    _sizes: list[tuple[float, float]] = field(default_factory=list)
    _least_beside: float = 0.0  # of all rounds: clients that code tensors more finely send more beside the body
    _told_least: bool = False

    def next_settings(self, settings: PluginSettings, values: Values, control: RateControl | None) -> PluginSettings:
        """Return the settings of the next round.

        Args:
            settings: of the run.
            values: the arrays that are sent.
            control: of the noise's scale, from which the size of masks follows; None for other methods.
        """
        values = in_pairs(values)
        ways = usual_ways(values)
        sizes = {way: sum(v.size for v, w in zip(values.values(), ways, strict=True) if w == way) for way in Way}
        self.parameters = max(1, sum(v.size for v in values.values() if np.issubdtype(v.dtype, np.floating)))
        if self.beside is None:  # later rounds know which tensors are coded
            self.count = max(1, sizes[Way.CODED])
            outside = 8 * _FRAMING + settings.dense_bits * sizes[Way.DENSE] + 64 * sizes[Way.EXACT]
            self.beside = self._least_beside = outside / self.parameters
            if (budget := self._budget(control)).is_even:
                _log.warning(budget.even_line())
        self.share = self.upcoming(control)
        if control is not None:
            return replace(settings, bits=self.share)
        return replace(settings, options={**settings.options, **self._size(settings.method)})

    def upcoming(self, control: RateControl | None) -> float:
        """Return the bits per parameter that a reply of the next round is to take, for the arrays of the last one."""
        return self._budget(control).share(self.spent)

    def _budget(self, control: RateControl | None) -> Budget:
        least = beside = self.beside or 0.0
        power, longest = ERROR_POWER, math.inf
        if control is not None:
            least += least_mask_bits(self.count) * self.count / self.parameters
            longest = beside + most_mask_bits(control.signed) * self.count / self.parameters
            power = error_power()
        masks = control is not None
        return Budget(self.bits, self.schedule, self.rounds, beside, least, longest, power, masks)

    def body_bits(self, share: float) -> float:
        """Return the bits per coded weight that a reply of so many bits per parameter leaves for the method's body."""
        return (share - (self.beside or 0.0)) * self.parameters / self.count

    def _size(self, method: str) -> dict[str, float]:
        """Return the option by which a method is told the size of its body."""
        left, least = self.body_bits(self.share), LEAST_BITS
        beside = self.share * self.parameters / self.count - left
        if method == "quantized" and left < min(_LEAST_BODY, _SMALL_PART * beside):
            least = _LEAST_BODY
        if left < least:
            self._tell_least(least)
        bits = min(32.0, max(least, left))
        if method != "topk":
            return {"bits": bits}
        from fedmrn_app.methods.topk import ratio_of  # few runs have it

        return {"ratio": ratio_of(bits)}

    def _tell_least(self, body: float) -> None:
        """Log that the budget is below what replies with a body of so many bits per coded weight take, once."""
        beside = self._least_beside
        least = beside + body * self.count / self.parameters
        if self.bits < least and not self._told_least:
            self._told_least = True
            _log.warning(
                "budget=%g: replies of this model take at least about %.2g bits per parameter, because %s bits are "
                "framing, biases and the like; raise it, or leave it out",
                self.bits, least, f"{round(beside * self.parameters):,}",
            )  # fmt: skip

    def note(self, uplink_bytes: int, sent: Mapping[str, Values], replied: Mapping[str, Values]) -> None:
        """Note the bytes of a reply, and the squared norm of its update."""
        square = 0.0
        for key, values in replied.items():
            base = in_pairs(sent.get(key, {}))
            for name, after in in_pairs(values).items():
                before = base.get(name)
                if before is not None and before.shape == after.shape and np.issubdtype(after.dtype, np.floating):
                    change = np.subtract(after, before, dtype=np.float64).ravel()
                    square += float(change @ change)
        self._sizes.append((8 * uplink_bytes / self.parameters, square))

    def end_round(self, payload: Spent | None) -> None:
        """Count what the replies of the last round have taken.

        Args:
            payload: what their payloads have taken in the mean; None if there were none.
        """
        if not self.share:
            return
        spent, square = map(float, np.mean(self._sizes, 0)) if self._sizes else (0.0, np.nan)
        if payload is not None:
            self.count = max(1, round(payload.weights))
            self.beside = max(0.0, spent - payload.body * payload.weights / self.parameters)
            self._least_beside = min(self._least_beside, self.beside)
        self.spent = self.spent.after(spent, square)
        self._sizes, self.share = [], 0.0

    def to_list(self) -> list[float]:
        """Return what has been spent, in a form that JSON can hold."""
        return [float(x) for x in self.spent.to_array()]

    def restore(self, values: Sequence[Any]) -> None:
        """Continue after what an earlier run has spent."""
        self.spent = BudgetState.from_array(np.array(values, np.float64))


def check_budget(
    budget: float, method: str, *, bits: float | None, alpha: object, secure: bool, options: Mapping[str, Any]
) -> None:
    """Check that a budget goes with the other options.

    Raises:
        ConfigError: it does not.
    """
    wrong = {
        "bits": (bits, bits is not None, "is the size of each round, and the budget that of all rounds"),
        "secure": (secure, secure, "hides how long replies are"),
        "alpha": (alpha, alpha == "auto", "lets clients set the scale of the noise, and the budget sets it"),
    }
    wrong |= {f"options.{name}": (options.get(name), name in options, "is the size of each round") for name in _SIZES}
    for key, (value, clashes, reason) in wrong.items():
        if clashes:
            raise ConfigError(
                f"{key}={value}: {reason}; leave it out beside budget={budget:g}", code="conflict", key=key, value=value
            )
    if method not in ("quantized", "topk", "fedmrn", "fedmrns"):
        reason = f"budget={budget:g}: the server cannot set the size of replies of {method}"
        raise ConfigError(
            f"{reason}; choose quantized, topk, fedmrn or fedmrns", code="unused", key="budget", value=budget
        )
