"""The server's notes about the residuals of error feedback, which lie on the clients' disks.

The state of a run holds, for each client, the number of the last order whose reply was used. A client that continues
from an older residual, or from none, would give other weights without a sign of it. So each node is asked of which
orders its clients have residuals: when the run resumes, and when the node restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from fedmrn_app.errors import RunError

_NAMED = 5  # clients in a line


class ResidualNotes:
    """Compares what clients have kept with what they should have.

    Attributes:
        lost: clients of a resumed run without the residual that they should have, and why.
    """

    def __init__(
        self,
        notes: dict[int, int],
        last: Callable[[], int],
        *,
        per_round: int,
        go_on: bool,
        report: Callable[[str], None],
    ) -> None:
        """Make the notes of a run.

        Args:
            notes: number of the last order of each client whose reply was used; clients that go on without their
                residual are removed.
            last: returns the number of the last order that the finished rounds can have used.
            per_round: number of orders of a round.
            go_on: whether the run goes on without residuals that are lost.
            report: adds a line to the run's log.
        """
        self._notes = notes
        self._last = last
        self._per_round = per_round
        self._go_on = go_on
        self._report = report
        self.lost: dict[int, str] = {}

    @property
    def last(self) -> int:
        """The number of the last order that the finished rounds can have used, up to which nodes are asked."""
        return self._last()

    def check(self, clients: Iterable[int], held: Mapping[int, int], last: int) -> None:
        """Compare a node's answer with the notes.

        Args:
            clients: that the node hosts.
            held: number of the latest order, up to `last`, of which each client has a residual.
            last: the number that the node was asked for.
        """
        lost = {client: held.get(client, 0) for client in clients if held.get(client, 0) < self._notes.get(client, 0)}
        lost = {client: number for client, number in lost.items() if self._notes[client] <= last}  # older than the note
        reasons = {client: self._describe(client, number) for client, number in lost.items()}
        if not self._go_on:
            self.lost |= reasons
        elif lost:
            self._report(f"{_joined(reasons.values())}; going on without")
            for client in lost:
                del self._notes[client]

    def begin(self) -> None:
        """Start to train; from now on a device that has lost its disk no longer ends the run.

        Raises:
            RunError: clients have lost residuals; the message names them.
        """
        if self.lost:
            raise RunError(
                f"resume=true: {_joined(self.lost.values())}; bring back clients/ in the run's folder, or on a device "
                "its state-path, or say resume=anyway to go on without",
                code="residuals", key="resume", value=True,
            )  # fmt: skip
        self._go_on = True

    def _describe(self, client: int, held: int) -> str:
        rounds = [(number - 1) // self._per_round + 1 for number in (self._notes[client], held)]
        instead = f" and has that of round {rounds[1]}" if held else ""
        return f"client {client} has lost its residual of round {rounds[0]}{instead}"


def _joined(reasons: Iterable[str]) -> str:
    reasons = list(reasons)
    more = f", ... ({len(reasons)} in all)" if len(reasons) > _NAMED else ""
    return ", ".join(reasons[:_NAMED]) + more
