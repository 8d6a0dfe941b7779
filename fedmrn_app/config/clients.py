"""Checks of how many clients there are, are asked and must reply."""

from __future__ import annotations

from fedmrn_app.config.types import Config
from fedmrn_app.errors import ConfigError


def check_clients(config: Config) -> None:
    """Refuse numbers that do not go together."""
    if config.clients_per_round > config.clients:
        raise ConfigError(f"clients_per_round={config.clients_per_round}: must be from 1 to clients={config.clients}")
    if config.min_clients is not None and config.min_clients > config.clients:
        raise ConfigError(f"min_clients={config.min_clients}: must be from 1 to clients={config.clients}")
    if config.min_replies > config.clients_per_round:
        raise ConfigError(
            f"min_replies={config.min_replies}: must be from 1 to clients_per_round={config.clients_per_round}"
        )
    if config.privacy.noised and (config.oversample > 1 or config.min_replies > 1):
        key, value = ("oversample", config.oversample) if config.oversample > 1 else ("min_replies", config.min_replies)
        raise ConfigError(
            f"{key}={value:g}: in a private run who is in a round must not depend on who replies; say {key}=1"
        )
    if (config.simulation.nodes or 1) > config.clients:
        raise ConfigError(f"simulation.nodes={config.simulation.nodes}: must be from 1 to clients={config.clients}")
