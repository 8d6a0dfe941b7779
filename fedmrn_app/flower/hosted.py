"""The query which clients a node hosts, and the node's answer.

server -> node    {"run": configuration, "wire": revision, version, "kept": last}
node -> server    {"hosted": clients, samples, kept, columns, wire, version}

Both sides say which revision of all messages they speak, because two installations may differ and have one version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from flwr.app import ConfigRecord, Message, RecordDict

from fedmrn_app.environment import release
from fedmrn_app.errors import ConfigError
from fedmrn_app.exchange.messages import one_line, remote_reason

WIRE = 2  # revision of all messages between server and devices; the next change of one of them makes it 3


@dataclass(frozen=True)
class Hosted:
    """A node's answer to the query which clients it hosts.

    Attributes:
        samples: number of samples of each client that the node hosts.
        refusal: why the node takes no part; None if it does.
        nodes: number of nodes that share the clients; None where the node's configuration does not say.
        kept: number of the latest order of which each client has a residual, see `flower/residual_notes.py`.
        columns: checksum of the columns of the node's own table, see `Task.own_columns`.
    """

    samples: Mapping[int, int]
    refusal: str | None = None
    nodes: int | None = None
    kept: Mapping[int, int] = field(default_factory=dict)
    columns: str | None = None


def query_content(config: bytes, last: int | None) -> RecordDict:
    """Return the content of the message that asks a node which clients it hosts.

    Args:
        config: the run's configuration, see `pack_config`.
        last: number of the order up to which the node is asked for its clients' residuals; None without error feedback.
    """
    wire = ConfigRecord({"revision": WIRE, "version": release()})
    content = RecordDict({"run": ConfigRecord({"config": config}), "wire": wire})
    if last is not None:
        content["kept"] = ConfigRecord({"last": last})
    return content


def check_wire(content: RecordDict) -> None:
    """Check that the server that asks speaks the same revision as this device.

    Raises:
        ConfigError: it speaks another one.
    """
    record: Mapping[str, object] = content.config_records.get("wire") or {}
    if (problem := _other_wire(record.get("revision"), record.get("version"), "server", "device")) is not None:
        raise ConfigError(problem, code="wire", key="wire", value=record.get("revision"))


def _other_wire(revision: object, version: object, peer: str, here: str) -> str | None:
    """Return why two sides do not understand each other; None if they do."""
    if revision == WIRE:
        return None
    other = "an older revision" if revision is None else f"revision {revision}"
    theirs = "" if version is None else f" (fedmrn {one_line(str(version))})"
    return (
        f"the {peer} speaks {other} of the messages{theirs}, this {here} revision {WIRE} (fedmrn {release()}); install "
        "the same fedmrn on both"
    )


def read_last(content: RecordDict) -> int | None:
    """Return the number of the order up to which a node is asked for residuals; None if it is not asked."""
    record = content.config_records.get("kept")
    last = None if record is None else record.get("last")
    return last if type(last) is int else None


def hosted_content(hosted: Hosted) -> RecordDict:
    """Return the content of a node's answer to the query which clients it hosts."""
    record = ConfigRecord({"wire": WIRE, "version": release()})
    if hosted.samples:
        record["clients"] = list(hosted.samples)
        record["samples"] = list(hosted.samples.values())
    if hosted.kept:
        record["kept"] = [hosted.kept.get(client, 0) for client in hosted.samples]
    if hosted.refusal is not None:
        record["refusal"] = hosted.refusal
    if hosted.nodes is not None:
        record["nodes"] = hosted.nodes
    if hosted.columns is not None:
        record["columns"] = hosted.columns
    return RecordDict({"hosted": record})


def read_hosted(reply: Message) -> Hosted:
    """Return a node's answer; a failed or malformed answer counts as a refusal."""
    if reply.has_error():
        return Hosted({}, remote_reason(str(reply.error.reason)))
    record = reply.content.config_records.get("hosted")
    clients, samples, kept = (_integers(record, name) for name in ("clients", "samples", "kept"))
    if record is None or clients is None or samples is None or len(clients) != len(samples):
        return Hosted({}, "its answer is malformed")
    refusal, nodes, columns = record.get("refusal"), record.get("nodes"), record.get("columns")
    if (problem := _other_wire(record.get("wire"), record.get("version"), "device", "server")) is not None:
        return Hosted(dict.fromkeys(clients, 0), problem)
    return Hosted(
        dict(zip(clients, samples, strict=True)),
        None if refusal is None else one_line(str(refusal)),
        nodes if type(nodes) is int else None,
        dict(zip(clients, kept or [], strict=False)),
        columns if isinstance(columns, str) else None,
    )


def _integers(record: ConfigRecord | None, name: str) -> list[int] | None:
    """Return a list of integers in a record, empty if the field is missing; None if it holds anything else."""
    values = [] if record is None else record.get(name, [])
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        return None
    return cast(list[int], values)
