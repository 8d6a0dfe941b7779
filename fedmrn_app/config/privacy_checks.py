"""What `privacy:` needs of the rest of a configuration, and the server's side of it; what does not fit is refused."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from fedmrn_app.config.schema import Config
from fedmrn_app.errors import BudgetSpent, ConfigError, RunError
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.layout import Layout
from fedmrn_app.methods.method import Method
from fedmrn_app.privacy.ledger import Ledger
from fedmrn_app.privacy.mechanism import Privacy

Facts = dict[str, Any]


def check_privacy(config: Config, method: Method) -> None:
    """Refuse a configuration that cannot keep what `privacy:` asks for; nothing is worked out for it.

    Raises:
        ConfigError: names the key, why, and the way out.
    """
    privacy = config.privacy
    if privacy.clip is not None and not privacy.noised:
        raise ConfigError(
            f"privacy.clip={privacy.clip:g}: clipping without noise protects nobody; say privacy.noise_multiplier=1 or "
            "privacy.epsilon=8 too"
        )
    if privacy.flip is not None and privacy.local_epsilon is not None:
        raise ConfigError(
            f"privacy.flip={privacy.flip:g}: follows from privacy.local_epsilon={privacy.local_epsilon:g}; say one of "
            "the two"
        )
    if not privacy.noised and privacy.flips is None:
        return
    if config.uplink.bits is not None:
        raise ConfigError(
            f"uplink.bits={config.uplink.bits:g}: steers the masks by the sizes of clients' replies, which depend on "
            "their data and get no noise; with privacy say uplink.bits=null"
        )
    if config.evaluate_train:
        raise ConfigError(
            "evaluate_train=true: publishes the model's loss on clients' rows; with privacy say evaluate_train=false"
        )
    if privacy.flips is not None and method.flips is None:
        key = "flip" if privacy.local_epsilon is None else "local_epsilon"
        raise ConfigError(
            f"privacy.{key}={getattr(privacy, key):g}: strategy={method.name} sends no masks of which bits could be "
            "flipped; take fedmrn, fedmrns or fedpm"
        )
    if privacy.noised:
        _check_noised(config, method)


def _check_noised(config: Config, method: Method) -> None:
    privacy = config.privacy
    if not method.server.averages_updates:
        raise ConfigError(
            f"strategy={method.name}: averages whole masks or models, whose norm leaves no room for noise; with "
            "privacy.epsilon or privacy.noise_multiplier take one that averages updates, such as fedmrn or fedavg"
        )
    if method.server.averages_holders:
        raise ConfigError(
            "strategy.aggregate=coverage: divides by how many clients hold a weight, which noise does not cover; say "
            "strategy.aggregate=fill"
        )
    if method.server.counts_participants:
        raise ConfigError(
            "strategy.divisor=clients: tells how many clients took part, which noise does not cover; say "
            "strategy.divisor=participants"
        )
    if method.error_feedback:
        raise ConfigError(
            "strategy.error_feedback=true: clients carry from round to round what clipping took away, which is not "
            "accounted for; with privacy say strategy.error_feedback=false"
        )
    if privacy.delta >= 1 / config.clients:
        raise ConfigError(
            f"privacy.delta={privacy.delta:g}: must be below 1/clients={1 / config.clients:g}; at that one client's "
            "data could be published whole"
        )
    if privacy.clip is None and method.codec.limits(Layout(((1,),))).max_norm is None:
        raise ConfigError(
            f"privacy.clip=null: updates of strategy={method.name} have any norm; say the largest one, such as "
            "privacy.clip=1"
        )


def check_statistics(module: nn.Module, config: Config, label: str) -> None:
    """Refuse a model with running statistics in a private run.

    Raises:
        ConfigError: with noise a variance may be negative; of flipped masks alone they would never change.
    """
    privacy = config.privacy
    if not privacy.noised and privacy.flips is None:
        return
    if any(buffer.is_floating_point() for buffer in module.buffers()):
        raise ConfigError(
            f"{label}: has running statistics, which cannot be averaged with privacy; say model=digits "
            "model.norm=static (likewise cnn4, cnn8, preact_resnet18), or take model=mlp or another without"
        )


def check_budget(config: Config) -> None:
    """Refuse a budget that does not pay a single round; finds the noise multiplier as the server will.

    Raises:
        ConfigError: names the budget.
    """
    if config.privacy.epsilon is None:
        return
    try:
        privacy = _privacy(config, Layout(((1,),)), config.privacy.clip or 1.0, Ledger())
        privacy.open(1, range(config.clients))
    except BudgetSpent as spent:
        reason = str(spent).replace("the run ends before round 1, with which", "not one round fits: with one")
        raise ConfigError(reason) from spent


def open_privacy(config: Config, protocol: RunProtocol, ledger: Ledger | None) -> Privacy | None:
    """The server's side of a run's privacy; None where no noise is added.

    Args:
        config: of the run.
        protocol: likewise.
        ledger: of the run's folder; None for one in memory.

    Raises:
        RunError: the ledger is not of such a run.
        BudgetSpent: the budget does not pay the rounds to come.
    """
    if not config.privacy.noised:
        if ledger is not None and ledger.releases:
            raise RunError("resume=true: the run has been private so far; say the same privacy.* as before")
        return None
    clip = config.privacy.clip
    if clip is None:
        clip = protocol.method.codec.limits(protocol.layout).max_norm
        assert clip is not None, "check_privacy refuses what has none"
    return _privacy(config, protocol.layout, clip, ledger)


def _privacy(config: Config, layout: Layout, clip: float, ledger: Ledger | None) -> Privacy:
    return Privacy(
        config.privacy,
        seed=config.seed,
        clip=clip,
        clients=config.clients,
        clients_per_round=config.clients_per_round,
        rounds=config.rounds,
        ledger=ledger,
    )


def privacy_lines(config: Config, privacy: Privacy | None, protocol: RunProtocol) -> list[str]:
    """What a run says of its privacy before it starts."""
    lines = []
    if privacy is not None:
        typical, chosen = privacy.typical, config.privacy
        drawn = "each" if typical.sampling == "poisson" else "a fixed number"
        lines.append(
            f"privacy: clip {typical.clip:.4g}, noise multiplier {typical.noise_multiplier:.4g}, which is "
            f"{privacy.deviation:.4g} on each weight of the mean; {typical.asked} of {typical.clients} clients per "
            f"round, {drawn} drawn at random; delta {chosen.delta:g}"
        )
    flips = protocol.method.flips
    if flips is not None:
        count = protocol.layout.count
        lines.append(
            f"privacy: each bit of a mask is flipped with probability {flips.probability:.4g}: in each round epsilon "
            f"{flips.epsilon:.4g} for a bit alone, {flips.epsilon * count:,.0f} for the whole mask of {count:,} bits"
        )
    if lines and not config.privacy.secret:
        lines.append(
            "privacy.noise_seed=run: whoever knows the run's seed can take the noise away: for experiments only"
        )
    return lines


def privacy_facts(config: Config, privacy: Privacy | None, protocol: RunProtocol) -> Facts:
    """What a summary says of the run's privacy; nothing where there is none."""
    facts: Facts = {}
    if privacy is not None:
        spent = privacy.spent
        facts |= {
            "epsilon": spent if math.isfinite(spent) else None,
            "delta": config.privacy.delta,
            "noise_multiplier": privacy.typical.noise_multiplier,
            "clip": privacy.typical.clip,
            "sampling": config.privacy.sampling,
        }
    flips = protocol.method.flips
    if flips is not None:
        facts |= {
            "flip": flips.probability,
            "local_epsilon_per_bit": flips.epsilon,
            "local_epsilon_per_mask": flips.epsilon * protocol.layout.count,
        }
    return facts | ({"noise_seed": config.privacy.noise_seed} if facts else {})
