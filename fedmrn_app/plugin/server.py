"""The server's half of the plug-in: a Flower strategy around any other, which then gets the arrays that it expects."""

from __future__ import annotations

import logging
from inspect import signature
from typing import Any, NoReturn, Unpack

from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.plugin.grid import CompressedGrid
from fedmrn_app.plugin.options import Options, new_exchange

_OWN = ("strategy", "compression")  # attributes of Compressed; all others are those of the strategy
_log = logging.getLogger("flwr")


class Compressed(Strategy):
    """A strategy around another one: clients upload a fraction of a bit to a few bits per weight instead of 32.

    The inner strategy runs as before, with its own `start` if it has one, on a grid that compresses. It gets
    ArrayRecords with the names, shapes and dtypes that it sent. A client that fails, or whose reply is refused, is a
    failure in its log:

        strategy = Compressed(FedAvg(fraction_train=0.5))
        strategy.start(grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=10)

    The clients need `ClientApp(mods=[compress_uplink])`, and for `fedmrn` and `fedmrns` an optimizer that learns masks,
    `MaskedSGD` or `learn_masks`. Floating-point tensors with two or more dimensions are coded, the others are sent
    densely. The metrics of each reply gain `uplink_bytes` and `downlink_bytes`, of all records of all replies and
    messages of the client in the round, and `uplink_bits_per_parameter`. Attributes of the inner
    strategy can be read and set on this one.

    Args:
        strategy: any strategy of Flower's or your own, with its wrappers, such as those for differential privacy.
        method: a method that compresses after training, such as `quantized` and `eden`, or `fedmrn` or `fedmrns`, which
            learn masks. None, the default, takes `eden` with about the same relative error in each tensor, with two
            bits per element in the first two rounds and one later; `quantized` where options such as a size are given;
            and `fedavg` with `secure=True`.
        **options: see `Options`.

    Raises:
        ConfigError: the method or an option does not work on an app's arrays, the strategy is none of
            `flwr.serverapp.strategy`, or it needs single replies, which secure sums hide.
    """

    def __init__(self, strategy: Strategy, method: str | None = None, **options: Unpack[Options]) -> None:
        if isinstance(strategy, Compressed):
            raise ConfigError("Compressed(Compressed(...)): one is enough", code="nested", key="strategy")
        if not isinstance(strategy, Strategy):
            kind = strategy if isinstance(strategy, type) else type(strategy)
            what = "a class" if kind is strategy else "no strategy of flwr.serverapp.strategy"
            if hasattr(kind, "configure_fit"):
                what = "a strategy of flwr.server, whose messages have no arrays"
            reason = f"{kind.__module__}.{kind.__name__} is {what}; say Compressed(flwr.serverapp.strategy.FedAvg(...))"
            raise ConfigError(reason, code="strategy", key="strategy", value=kind.__name__)
        self.strategy = strategy
        self.compression = new_exchange(method, options, strategy)
        if self.compression.sums is not None:
            self.compression.sums.check_adds_up(strategy)

    def start(self, grid: Grid, *args: Any, **more: Any) -> Result:
        """Run all rounds as the inner strategy does, see its `start`.

        Raises:
            RunError: all clients failed in more rounds in a row than `max_failed_rounds`.
        """
        _log.info("Uplink: %s", self.compression)
        self.compression.plan(_rounds_of(self.strategy, grid, args, more))
        if self.compression.sums is not None:
            self.compression.sums.weigh_as(self.strategy)
        return self.strategy.start(CompressedGrid(grid, self.compression), *args, **more)

    def state(self) -> dict[str, Any]:
        """Return what `Compressed(..., state=...)` needs to go on in a later run, in a form that JSON can hold."""
        return self.compression.state()

    def summary(self) -> None:
        """Log the settings of the uplink and the inner strategy's summary."""
        _log.info("\t├──> Uplink: %s", self.compression)
        self.strategy.summary()

    def configure_train(self, *args: Any, **more: Any) -> NoReturn:
        """Refuse to be called by another strategy or loop, which would aggregate payloads."""
        raise RunError(
            "Compressed must be the outermost strategy: Compressed(Wrapper(FedAvg(...))), not "
            "Wrapper(Compressed(FedAvg(...))); in a loop of your own say: with compressed_grid(grid) as grid",
            code="not-outermost",
        )

    aggregate_train = configure_evaluate = aggregate_evaluate = configure_train

    def __getattr__(self, name: str) -> Any:
        if name in _OWN or name.startswith("__"):  # while an instance is being copied
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            super().__setattr__(name, value)
        else:
            setattr(self.strategy, name, value)


def _rounds_of(strategy: Strategy, grid: Grid, args: tuple[Any, ...], more: dict[str, Any]) -> int:
    """Return the number of rounds that a strategy is started with; 0 if its `start` takes none."""
    try:
        bound = signature(strategy.start).bind(grid, *args, **more)
    except (TypeError, ValueError):  # the strategy's own `start` says what is wrong
        return 0
    bound.apply_defaults()
    rounds = bound.arguments.get("num_rounds", 0)
    return rounds if isinstance(rounds, int) and rounds > 0 else 0
