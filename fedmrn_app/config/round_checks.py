"""What is refused of how many clients are asked, and of how long they are waited for."""

from __future__ import annotations

from fedmrn_app.config.schema import Config
from fedmrn_app.errors import ConfigError
from fedmrn_app.methods.method import Method
from fedmrn_app.methods.submodel_selection import SubmodelSelector


def check_rounds(config: Config, method: Method) -> None:
    """Refuse what cannot work.

    Raises:
        ConfigError: in one line that names the key, the value and the way out.
    """
    if config.clients_per_round > config.clients:
        raise ConfigError(f"clients_per_round={config.clients_per_round}: must be from 1 to clients={config.clients}")
    if config.min_clients is not None and config.min_clients > config.clients:
        raise ConfigError(f"min_clients={config.min_clients}: must be from 1 to clients={config.clients}")
    if (config.simulation.nodes or 1) > config.clients:
        raise ConfigError(f"simulation.nodes={config.simulation.nodes}: must be from 1 to clients={config.clients}")
    if config.ray.address is not None and method.error_feedback:
        raise ConfigError(
            f"ray.address={config.ray.address}: with error feedback a client must find what it left on its disk, and "
            "it may be on another machine each time; say strategy.error_feedback=false"
        )
    if config.min_replies > config.clients_per_round:
        raise ConfigError(
            f"min_replies={config.min_replies}: must be from 1 to clients_per_round={config.clients_per_round}"
        )
    key, value = ("oversample", config.oversample) if config.oversample > 1 else ("min_replies", config.min_replies)
    if config.privacy.noised and value > 1:
        raise ConfigError(
            f"{key}={value:g}: in a private run who is in a round must not depend on who replies; say {key}=1"
        )
    if config.server_lr != 1 and not method.server.averages_updates:
        raise ConfigError(
            f"server_lr={config.server_lr:g}: {method.name} sends no updates of which the server could add more or "
            "less; say server_lr=1"
        )
    if config.server == "async":
        _check_asynchronous(config, method)
    elif config.buffer is not None:
        raise ConfigError(f"buffer={config.buffer}: rounds have none; say server=async, or buffer=null")


def _check_asynchronous(config: Config, method: Method) -> None:
    if config.oversample > 1 or config.min_replies > 1:
        raise ConfigError("server=async: takes replies as they come; say oversample=1 min_replies=1")
    if config.privacy.noised:
        raise ConfigError("server=async: who replies when would change what is private; say server=sync")
    if config.downlink.remembers:
        raise ConfigError("server=async: clients hold no versions that all know of; say downlink.memory=false")
    if not method.server.averages_updates or type(method.selection) is not SubmodelSelector:
        raise ConfigError(
            f"server=async: {method.name} sends no updates of all weights that could be added later; say server=sync"
        )
