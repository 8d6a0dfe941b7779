"""Conflicts of `privacy` with the rest of a configuration, and the server's side of a private run."""

from __future__ import annotations

import math
from typing import Any

from fedmrn_app.config.checks import Conflict, refuse, value_of
from fedmrn_app.config.schema import Config
from fedmrn_app.errors import BudgetSpent, ConfigError, RunError
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.secure_round import secure_fields
from fedmrn_app.layout import Layout
from fedmrn_app.methods.method import Method
from fedmrn_app.privacy.accounting import accounting_library, epsilon
from fedmrn_app.privacy.ledger import Ledger
from fedmrn_app.privacy.mechanism import Evaluations, Privacy
from fedmrn_app.secure.graph import MIN_CLIENTS, GraphSettings
from fedmrn_app.validation import refusal

_MUCH = 0.05  # noise of a sum of tallies, after which an accuracy is off by some ten points


def check_privacy(config: Config, method: Method) -> None:
    """Refuse a configuration that cannot keep what `privacy` asks for. The noise multiplier is not computed."""
    privacy, server = config.privacy, method.server
    private = privacy.noised or privacy.randomized_response is not None
    flip = "privacy.flip" if privacy.local_epsilon is None else "privacy.local_epsilon"
    conflicts = [
        (
            privacy.clip is not None and not privacy.noised,
            "privacy.clip",
            "clipping without noise protects nobody; set privacy.noise_multiplier=1 or privacy.epsilon=8 too",
        ),
        (
            privacy.flip is not None and privacy.local_epsilon is not None,
            "privacy.flip",
            f"follows from privacy.local_epsilon={privacy.local_epsilon or 0:g}; set one of the two",
        ),
        *(
            (
                private and getattr(config.uplink, key) is not None,
                f"uplink.{key}",
                "steers the masks by the sizes of clients' replies, which depend on their data and get no noise; with "
                f"privacy set uplink.{key}=null",
            )
            for key in ("budget", "bits")
        ),
        (
            private and config.evaluation.train,
            "evaluation.train",
            "publishes the model's loss on clients' rows; with privacy set evaluation.train=false",
        ),
        (
            private and method.codec.tells_labels,
            "strategy.label_rows",
            "tells the server which labels each client has; with privacy set strategy.label_rows=all",
        ),
        (
            privacy.randomized_response is not None and method.randomized_response is None,
            flip,
            f"strategy={method.name} sends no masks of which bits could be flipped; take fedmrn, fedmrns or fedpm",
        ),
        (
            privacy.noised and not server.averages_updates,
            "strategy",
            "averages whole masks or models, whose norm leaves no room for noise; with privacy.epsilon or "
            "privacy.noise_multiplier take one that averages updates, such as fedmrn or fedavg",
        ),
        (
            privacy.noised and server.averages_holders,
            "strategy.aggregate",
            "divides by how many clients hold a weight, which noise does not cover; set strategy.aggregate=fill",
        ),
        (
            privacy.noised and server.counts_participants,
            "strategy.divisor",
            "tells how many clients took part, which noise does not cover; set strategy.divisor=participants",
        ),
        (
            privacy.noised and method.error_feedback,
            "strategy.error_feedback",
            "clients carry from round to round what clipping took away, which is not accounted for; with privacy set "
            "strategy.error_feedback=false",
        ),
        (
            privacy.noised and privacy.delta >= 1 / config.clients,
            "privacy.delta",
            f"must be below 1/clients={1 / config.clients:g}; at that one client's data could be published whole",
        ),
        (
            privacy.noised and privacy.clip is None and method.codec.limits(Layout(((1,),))).max_norm is None,
            "privacy.clip",
            f"updates of strategy={method.name} have any norm; set the largest one, such as privacy.clip=1",
        ),
    ]
    refuse(config, conflicts + _shared_conflicts(config, method))


def check_secure_settings(config: Config) -> None:
    """Refuse all settings at once that do not go with secure sums, in which the server sees no single reply.

    Raises:
        ConfigError: names the settings that do not go with secure sums, and the values that do.
    """
    privacy = config.privacy
    if not privacy.secure_aggregation:
        return
    unseen = "the server sees no single reply"
    flip = "privacy.flip" if privacy.local_epsilon is None else "privacy.local_epsilon"
    least = config.least_summands
    whole = "masks of a secure sum take a whole number of bits each"
    settings = [
        (config.uplink.bits is not None, "uplink.bits=null", whole),
        (config.uplink.budget is not None, "uplink.budget=null", whole),
        (config.uplink.coder != "packed", "uplink.coder=packed", "coded masks cannot be added"),
        (config.uplink.max_norm is not None, "uplink.max_norm=null", unseen),
        (not config.equal_weights, "client_weights=equal", "secure sums weigh all clients alike"),
        (privacy.randomized_response is not None, f"{flip}=null", "is not corrected in secure sums"),
        (config.server == "async", "server=sync", "a secure sum needs its clients at the same time"),
        (config.aggregation != "mean", "aggregation=mean", f"{unseen} that could be compared"),
        (config.oversample > 1, "oversample=1", "a secure sum needs all whose masks it holds"),
        (config.min_replies == 2, f"min_replies={MIN_CLIENTS}", "a sum of two masks tells each client the other one's"),
        (
            config.min_clients is not None and config.min_clients < least,
            f"min_clients={least}",
            f"starts rounds of fewer clients than a secure sum takes, min_replies={least}",
        ),
    ]
    wrong = [(values, reason) for applies, values, reason in settings if applies]
    if wrong:
        way_out = " ".join(values for values, _ in wrong)
        keys = [values.partition("=")[0] for values, _ in wrong]
        reason = wrong[0][1]
        if others := ", ".join(keys[1:]):
            verb = "do" if len(keys) > 2 else "does"
            reason = f"does not go with privacy.secure_aggregation=true, nor {verb} {others}"
        raise refusal(keys[0], value_of(config, keys[0]), f"{reason}; set {way_out}")


def _shared_conflicts(config: Config, method: Method) -> list[Conflict]:
    """Return the conflicts of secure sums and shared noise with the method, the run's noise and its clients."""
    secure, noised = config.privacy.secure_aggregation, config.privacy.noised
    shared = method.adds_masks and method.server.averages_updates
    return [
        (
            secure and not method.adds_masks,
            "strategy",
            "has no masks that a secure sum could add; with privacy.secure_aggregation take fedmrn, fedmrns or fedpm",
        ),
        (
            secure and noised,
            "privacy.secure_aggregation",
            "the server sees no single reply, whose norm privacy.epsilon and privacy.noise_multiplier would limit; set "
            "one of them",
        ),
        (
            secure and config.clients_per_round < MIN_CLIENTS,
            "clients_per_round",
            "a sum of so few masks tells each of them; with privacy.secure_aggregation set it to "
            f"{MIN_CLIENTS} or more",
        ),
        (
            shared and config.aggregation != "mean",
            "strategy.shared_noise",
            "each reply is a mask alone, and not an update that could be compared; with aggregation set it to false",
        ),
        (
            shared and noised,
            "strategy.shared_noise",
            "each reply is a mask alone, whose norm is not that of an update; with privacy set it to false",
        ),
        (shared and config.server == "async", "strategy.shared_noise", "is for rounds; set server=sync"),
    ]


def check_budget(config: Config) -> None:
    """Refuse a privacy budget that does not cover a single round; this computes the noise multiplier.

    Raises:
        ConfigError: names the budget.
    """
    budget, delta = config.privacy.epsilon, config.privacy.delta
    if config.privacy.noised:
        accounting_library()
    if budget is None:
        return
    try:
        privacy = _privacy(config, config.privacy.clip or 1.0, None)
    except BudgetSpent as spent:
        raise ConfigError(str(spent), code=spent.code, key=spent.key, value=spent.value) from spent
    least = [privacy.typical, *([privacy.tallies] if privacy.tallies and config.evaluation.every == 1 else [])]
    one_round = epsilon(least, delta)
    if one_round > budget:
        reason = f"not one round fits: with one epsilon would be {one_round:.4g} at delta {delta:g}"
        raise refusal("privacy.epsilon", budget, reason, "budget")


def open_privacy(config: Config, protocol: RunProtocol, ledger: Ledger | None) -> Privacy | None:
    """Return the server's side of a run's privacy; None if no noise is added.

    Args:
        config: the run's configuration.
        protocol: the run's protocol.
        ledger: the ledger of the run's folder; None for one in memory.

    Raises:
        RunError: the ledger is that of a private run, and this run is not private.
        BudgetSpent: the budget does not cover the rounds that are left.
    """
    if not config.privacy.noised:
        if ledger is not None and ledger.releases:
            reason = "resume=true: the run has been private so far; set the same privacy.* as before"
            raise RunError(reason, code="conflict", key="resume", value=True)
        return None
    clip = config.privacy.clip
    if clip is None:
        clip = protocol.method.codec.limits(protocol.layout).max_norm
        assert clip is not None, "check_privacy refuses methods without one"
    return _privacy(config, clip, ledger)


def _privacy(config: Config, clip: float, ledger: Ledger | None) -> Privacy:
    evaluations = None
    if config.evaluation.by_clients:
        evaluations = Evaluations(config.evaluation.clients or config.clients, config.evaluation.every)
    return Privacy(
        config.privacy,
        seed=config.seed,
        clip=clip,
        clients=config.clients,
        clients_per_round=config.clients_per_round,
        rounds=config.rounds,
        ledger=ledger,
        evaluations=evaluations,
    )


def privacy_lines(config: Config, privacy: Privacy | None, protocol: RunProtocol) -> list[str]:
    """Return the lines of the log that describe a run's privacy; none for a run without."""
    lines = []
    if privacy is not None:
        typical = privacy.typical
        drawn = "each" if typical.sampling == "poisson" else "a fixed number"
        lines.append(
            f"privacy: clip {typical.clip:.4g}, noise multiplier {typical.noise_multiplier:.4g}, which is "
            f"{privacy.deviation:.4g} on each weight of the mean; {typical.asked} of {typical.clients} clients per "
            f"round, {drawn} drawn at random; delta {config.privacy.delta:g}"
        )
    if privacy is not None and (tallies := privacy.tallies) is not None:
        noise = tallies.noise_multiplier / tallies.asked
        little = ", so the clients' metric says little; take more clients, or a larger evaluation.every"
        lines.append(
            f"privacy: tallies of evaluation with the same noise multiplier, clip {tallies.clip:.4g}, of "
            f"{tallies.asked} of {tallies.clients} clients each time; the budget covers them; the noise on each entry "
            f"is {noise:.2g} of the sum of their norms{little if noise > _MUCH else ''}"
        )
    flips, count = protocol.method.randomized_response, protocol.layout.count
    if flips is not None:
        lines.append(
            f"privacy: each bit of a mask is flipped with probability {flips.probability:.4g}: in each round epsilon "
            f"{flips.epsilon:.4g} for a bit alone, {flips.epsilon * count:,.0f} for the whole mask of {count:,} bits"
        )
    if lines and not config.privacy.secret:
        lines.append(
            "privacy.noise_seed=run: whoever knows the run's seed can take the noise away: for experiments only"
        )
    if config.privacy.secure_aggregation:
        asked, graph = config.clients_per_round, GraphSettings(least=config.least_summands)
        neighbours, needed = graph.degree(asked), graph.shares(asked)
        masks, _ = secure_fields(protocol, asked)
        lines.append(
            f"privacy: the server learns the sum of at least {graph.survivors(asked)} of {asked} masks, {masks.bits} "
            f"bits per weight; each client shares pads with {neighbours} others, of which {needed} must stay, and "
            f"takes part in no sum of fewer than {graph.least} (min_replies)"
        )
    return lines


def privacy_facts(config: Config, privacy: Privacy | None, protocol: RunProtocol) -> dict[str, Any]:
    """Return what a summary holds about a run's privacy; nothing for a run without."""
    facts: dict[str, Any] = {}
    if privacy is not None:
        facts |= {
            "epsilon": privacy.spent if math.isfinite(privacy.spent) else None,
            "delta": config.privacy.delta,
            "noise_multiplier": privacy.typical.noise_multiplier,
            "clip": privacy.typical.clip,
            "sampling": config.privacy.sampling,
        }
    flips = protocol.method.randomized_response
    if flips is not None:
        facts |= {
            "flip": flips.probability,
            "local_epsilon_per_bit": flips.epsilon,
            "local_epsilon_per_mask": flips.epsilon * protocol.layout.count,
        }
    facts |= {"noise_seed": config.privacy.noise_seed} if facts else {}
    return facts | ({"secure_aggregation": True} if config.privacy.secure_aggregation else {})
