"""A budget of bits for a whole run, which the server divides over the rounds.

The server decides how many bits a round's replies are to take, says so in its orders, and divides what a round has
saved or overspent over those that follow. Schedules differ in how they divide the budget:

- `constant`: each round has the same share.
- `front`: two fine rounds at the start, then equal shares.
- `both_ends`: two fine rounds at the start and two at the end, equal shares between them.
- `auto`: shares that grow with the size of the updates. Let the squared error of a round's replies be s_t b_t^-p, with
  s_t the mean squared norm of the updates and b_t the bits per parameter. The sum of the errors of all rounds is least
  for b_t in proportion to s_t^(1 / (1 + p)), which a Lagrange multiplier shows. The server does not know the norms of
  rounds to come, and takes log s_t to fall in proportion to log t, with a slope that it fits to the rounds so far.
  Masks have equal shares, because they learned no more with others.
- `feddq`: the absolute error stays the same (FedDQ, arXiv:2110.02291, whose bits are the logarithm of an update's
  range over a fixed resolution), so that b_t is proportional to s_t^(1 / p). This is steeper than `auto`.
- `adaquantfl`: the relative error falls with the training loss f_t (AdaQuantFL, arXiv:2102.04487, whose
  number of levels is proportional to (f_0 / f_t)^(1/2), and the squared error falls with its square), so that b_t is
  proportional to f_t^(-1 / p). Shares grow during training.

`docs/budget.md` derives and compares them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Schedule = Literal["auto", "constant", "front", "both_ends", "feddq", "adaquantfl"]

FINE_ROUNDS = 2
FINE_BITS = 0.8  # per parameter, at which about a tenth of an update's squared norm is lost
FINE_SHARE = 0.5  # largest share of the whole budget that all fine rounds of a schedule take
HORIZON = 50  # rounds over which the fine rounds are paid for, where the number of rounds is not known
RESERVE = 1.5  # least share of each later round, as a multiple of the smallest one
LEAST, MOST = 0.1, 2.0  # of a round: as a share of the budget, and in bits per parameter
ERROR_POWER = 0.66  # p: of 1 / bits in the squared error, for updates of CNNs at 0.05 to 0.8 bits
PRIOR_WEIGHT = 1.0  # of the slopes before the first replies, in the fits
SIZE_SLOPE, LOSS_SLOPE = -1.0, -0.5  # of log s_t and of log f_t over log t before the first replies
STEEPEST = -1.0  # slope that is used; mean updates shrink faster than replies, which agree less and less


@dataclass(frozen=True)
class Trend:
    """A positive quantity of the rounds, taken to fall as a power of the round's number t.

    Attributes:
        sums: over the rounds in which it is known, of 1, x, x^2, y and x y, with x = log t and y its logarithm.
    """

    sums: tuple[float, ...] = (0.0,) * 5

    def after(self, number: int, value: float) -> Trend:
        """Return the trend after round `number`, in which the quantity is `value`, or NaN if it is not known."""
        if not (value > 0 and math.isfinite(value)):
            return self
        x, y = math.log(number), math.log(value)
        new = (1.0, x, x * x, y, x * y)
        return Trend(tuple(old + more for old, more in zip(self.sums, new, strict=True)))

    def slope(self, prior: float) -> float:
        """Return the slope of y over x, between `STEEPEST` and 0: least squares, drawn to `prior`."""
        n, x, xx, y, xy = self.sums
        if not n:
            return prior
        spread, common = xx - x * x / n, xy - x * y / n
        return min(0.0, max(STEEPEST, (common + PRIOR_WEIGHT * prior) / (spread + PRIOR_WEIGHT)))


@dataclass(frozen=True)
class BudgetState:
    """What has been spent after some rounds, how large their updates were, and what the training loss was.

    Attributes:
        rounds: number of finished rounds.
        spent: sum over these rounds of the bits per parameter of a reply, in the mean over a round's replies.
        size: trend of the mean squared norm of the updates.
        loss: trend of the training loss.
    """

    rounds: int = 0
    spent: float = 0.0
    size: Trend = Trend()
    loss: Trend = Trend()

    @classmethod
    def from_array(cls, array: NDArray[np.float64]) -> BudgetState:
        """Return the state of an array of `to_array`; older ones are shorter, and know no loss."""
        rounds, spent, *sums = map(float, array)
        return cls(int(rounds), spent, Trend(tuple(sums[:5])), Trend(tuple(sums[5:])) if sums[5:] else Trend())

    def to_array(self) -> NDArray[np.float64]:
        """Return the state as float64 (12,)."""
        return np.array([self.rounds, self.spent, *self.size.sums, *self.loss.sums])

    def after(self, spent: float, size: float, loss: float = math.nan) -> BudgetState:
        """Return the state after another round.

        Args:
            spent: bits per parameter of a reply, in the mean over the replies; 0 if there were none.
            size: mean squared norm of the updates as they were decoded; NaN if it is not known.
            loss: mean training loss that clients have told; NaN if it is not known.
        """
        rounds = self.rounds + 1
        return BudgetState(rounds, self.spent + spent, self.size.after(rounds, size), self.loss.after(rounds, loss))


@dataclass(frozen=True)
class Budget:
    """Divides a budget over the rounds of a run.

    Attributes:
        bits: bits per trained parameter of a whole reply, in the mean over the rounds.
        schedule: how they are divided.
        rounds: number of rounds of the run; 0 if it is not known.
        beside: bits per parameter of a reply outside the method's body, which are the same in each round.
        least: bits per parameter of the shortest reply.
        longest: bits per parameter of the longest reply.
        power: p, the power of 1 / bits in the squared error.
        masks: whether replies are masks, for which `auto` is `constant`.
    """

    bits: float
    schedule: Schedule = "auto"
    rounds: int = 0
    beside: float = 0.0
    least: float = 0.0
    longest: float = math.inf
    power: float = ERROR_POWER
    masks: bool = False

    def share(self, state: BudgetState) -> float:
        """Return the bits per parameter that a reply of the next round is to take."""
        done, planned = state.rounds, self._planned(state.rounds)
        left, remaining = planned - done, self.bits * planned - state.spent
        equal = remaining / left
        fine = self._fine(planned)
        starts, ends = done < FINE_ROUNDS, self.rounds and left <= FINE_ROUNDS
        if (power := self._power(state)) is not None:
            wanted = self.beside + (remaining - left * self.beside) * _first_part(state.rounds + 1, left, power)
        elif (self.schedule == "front" and starts) or (self.schedule == "both_ends" and starts and not ends):
            wanted = fine
        elif self.schedule == "both_ends" and self.rounds and not ends:
            wanted = (remaining - FINE_ROUNDS * fine) / (left - FINE_ROUNDS)
        else:
            wanted = equal
        least = max(self.least, LEAST * self.bits)
        # what leaves enough for the rounds to come, although replies may be longer than they are told
        most = max(remaining - (left - 1) * RESERVE * least, equal)
        return max(min(wanted, most, max(MOST, equal), self.longest), least)

    @property
    def is_even(self) -> bool:
        """Whether a schedule with fine rounds has room for none, so that all rounds have equal shares."""
        has_fine = self.schedule in ("front", "both_ends")
        return has_fine and self.bits < self.longest and self.share(BudgetState()) <= self.bits

    def even_line(self, prefix: str = "") -> str:
        """Return the line for the log where `is_even` is true; `prefix` stands before the names of the options."""
        return (
            f"{prefix}schedule={self.schedule}: all rounds have equal shares, because replies take at least about "
            f"{self.least:.2f} bits per parameter, and {prefix}budget={self.bits:g} leaves nothing for fine rounds"
        )

    def left(self, state: BudgetState) -> float:
        """Return the bits per parameter that are left for all rounds to come; NaN if their number is not known."""
        return self.bits * self.rounds - state.spent if self.rounds else math.nan

    def _planned(self, done: int) -> int:
        """Return the number of rounds over which the budget is divided."""
        if self.rounds:
            return max(self.rounds, done + 1)
        return HORIZON if done < HORIZON else done + HORIZON

    def _fine(self, planned: int) -> float:
        """Return the bits per parameter of a fine round."""
        rounds = 2 * FINE_ROUNDS if self.schedule == "both_ends" and self.rounds else FINE_ROUNDS
        return max(self.bits, min(FINE_BITS, FINE_SHARE * self.bits * planned / rounds, self.longest))

    def _power(self, state: BudgetState) -> float | None:
        """Return the power of t that the shares of the rounds follow; None where they follow none."""
        if self.schedule == "auto" and not self.masks:
            return state.size.slope(SIZE_SLOPE) / (1 + self.power)
        if self.schedule == "feddq":
            return state.size.slope(SIZE_SLOPE) / self.power
        if self.schedule == "adaquantfl":
            return -state.loss.slope(LOSS_SLOPE) / self.power
        return None


def _first_part(first: int, count: int, power: float) -> float:
    """Return the part of the first of `count` rounds from number `first`, whose shares are proportional to t^power."""
    return float(1 / np.sum((np.arange(first, first + count) / first) ** power))
