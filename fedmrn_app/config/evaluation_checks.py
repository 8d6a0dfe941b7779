"""Conflicts of `evaluation` with the rest of a configuration."""

from __future__ import annotations

from fedmrn_app.config.checks import refuse
from fedmrn_app.config.schema import Config
from fedmrn_app.methods.method import Method
from fedmrn_app.methods.submodel_selection import SubmodelSelector
from fedmrn_app.secure.graph import MIN_CLIENTS


def check_evaluation(config: Config, method: Method) -> None:
    """Refuse an evaluation that cannot be had, or that would tell what `privacy` hides.

    Raises:
        ConfigError: names the key, its value and the way out.
    """
    evaluation, clients = config.evaluation, config.clients
    asked = evaluation.clients or clients
    on_server = "set evaluation.on=server"
    beside = "there is no evaluation on the server to go with; set evaluation.on=both, or "
    conflicts = [
        (
            evaluation.holdout is not None and not evaluation.by_clients,
            "evaluation.holdout",
            "rows that nobody evaluates on are lost; set evaluation.on=clients or both, or evaluation.holdout=null",
        ),
        (asked > clients, "evaluation.clients", f"must be from 1 to clients={clients}"),
        (
            evaluation.by == "clients" and not evaluation.by_clients,
            "evaluation.by",
            "no client evaluates; set evaluation.on=clients or both",
        ),
        (evaluation.by == "server" and not evaluation.on_server, "evaluation.by", f"{beside}evaluation.by=null"),
        (evaluation.train and not evaluation.on_server, "evaluation.train", f"{beside}evaluation.train=false"),
        (
            evaluation.average is not None and not evaluation.on_server,
            "evaluation.average",
            f"{beside}evaluation.average=null",
        ),
        (config.validation is not None and not evaluation.on_server, "validation", f"{beside}validation=null"),
    ]
    refuse(config, conflicts)
    if not evaluation.by_clients:
        return
    flips = config.privacy.randomized_response is not None
    secure = config.privacy.secure_aggregation
    refuse(
        config,
        [
            (
                config.server == "async",
                "evaluation.on",
                f"an asynchronous run has no time at which no client trains; {on_server}, or server=sync",
            ),
            (
                type(method.selection) is not SubmodelSelector,
                "evaluation.on",
                f"clients of strategy={method.name} hold a part of the model, which is not what is evaluated; "
                f"{on_server}",
            ),
            (
                config.static_norm == "train",
                "evaluation.on",
                f"clients do not have the statistics of a pass over all training data; {on_server}, or "
                "static_norm=batch",
            ),
            (
                flips,
                "evaluation.on",
                "clients' counts would reach the server as they are, from which the bits of their masks are hidden; "
                f"{on_server}, or take noise on the sum (privacy.epsilon) in place of flips",
            ),
            (
                secure and asked < MIN_CLIENTS,
                "evaluation.clients",
                f"a sum of so few tallies tells each of them; with privacy.secure_aggregation set it to {MIN_CLIENTS} "
                "or more",
            ),
        ],
    )
