"""A node in one run: what its owner configured, and what it keeps of the run from message to message."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from flwr.app import ConfigRecord, Context, Message

from fedmrn_app.config.resolved import unpack_config, unpack_run
from fedmrn_app.environment import ALLOW_TARGETS, read_variable
from fedmrn_app.errors import ConfigError, PayloadError
from fedmrn_app.exchange.client_storage import KeptVersions, Purpose, Residuals, Secrets, state_root


class LostError(ConfigError):
    """This node no longer has the run's configuration."""


@dataclass(frozen=True)
class Node:
    """A node in one run.

    Attributes:
        context: Flower's context, which holds the configuration by the node's owner.
        config: the run's configuration as it came, see `pack_config`.
    """

    context: Context
    config: bytes

    @classmethod
    def of(cls, message: Message, context: Context) -> Node:
        """Take the run's configuration from the message that brings it, or from what this node has kept.

        Raises:
            LostError: the message brings none, and the node has kept none.
        """
        record = message.content.config_records.get("run")
        if record is not None:
            context.state["run"] = ConfigRecord({"config": record["config"]})
        if "run" not in context.state:
            reason = "this node has lost the run's configuration; the server sends it again when it is told"
            raise LostError(reason, code="lost")
        return cls(context, cast(bytes, cast(ConfigRecord, context.state["run"])["config"]))

    def setting(self, key: str) -> str | None:
        """Return a value of the owner's configuration; None if it is not set."""
        value = self.context.node_config.get(key)
        return None if value is None else str(value)

    def allowed_targets(self) -> str:
        """Return the prefixes of code that this node runs for others, separated by spaces or commas."""
        allowed = self.setting("allow-targets")
        return read_variable(ALLOW_TARGETS) if allowed is None else allowed

    def clients(self) -> range:
        """Return the clients that this node hosts.

        Raises:
            PayloadError: the run's configuration does not hold the number of clients.
            ConfigError: as `hosted_clients`.
        """
        return hosted_clients(self.context, _client_count(self.config))

    def residuals(self) -> Residuals:
        """Return what clients of the run keep on this node from round to round, such as residuals."""
        return Residuals(state_root(self.context.node_config), unpack_run(self.config))

    def secrets(self, purpose: Purpose = "train") -> Secrets:
        """Return what clients keep between two messages of a secure sum."""
        return Secrets(self.residuals().folder, purpose)

    def versions(self) -> KeptVersions:
        """Return the versions of the global model that this node's clients hold."""
        return KeptVersions(self.residuals().folder)


@lru_cache(maxsize=4)
def _client_count(config: bytes) -> int:
    """Return the number of clients of a run; the configuration comes with every message, and is read once."""
    clients = unpack_config(config).get("clients")
    if type(clients) is not int or clients < 1:
        reason = f"clients={clients!r}: must be a number of clients"
        raise PayloadError(reason, code="configuration", key="clients", value=clients)
    return clients


def hosted_clients(context: Context, clients: int) -> range:
    """Return the clients that a node hosts: of n nodes, node i hosts client i and every n-th client after it.

    A node with data of its own is one client.

    Raises:
        ConfigError: the node's configuration does not say which clients, or names one that the run does not have.
    """
    try:
        first = int(context.node_config["partition-id"])
        nodes = int(context.node_config.get("num-partitions", clients))
    except (KeyError, ValueError):
        reason = "partition-id: is missing in the node's configuration; say partition-id=NUMBER"
        raise ConfigError(reason, code="missing", key="partition-id") from None
    own = "data-path" in context.node_config
    if first < 0 or (own and first >= clients):
        reason = f"partition-id={first}: must be from 0 to {clients - 1}, the run's clients"
        raise ConfigError(reason, code="range", key="partition-id", value=first)
    return range(first, first + 1) if own else range(first, clients, max(1, nodes))
