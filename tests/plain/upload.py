"""A client's upload, checked and decoded by itself; the package's `check_upload` prepares it for a sum."""

from __future__ import annotations

from dataclasses import dataclass

from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.dense import unpack_dense
from fedmrn_app.wire.payload import Header, Payload, decode_payload


@dataclass(frozen=True)
class Upload:
    """A checked and decoded upload: contributions to the global vector (d,) and to the dense part (m,)."""

    payload: Payload
    vector: Float32Array
    dense: Float32Array


def read_upload(
    data: bytes, protocol: RunProtocol, header: Header, context: SharedContext, dense: Float32Array
) -> Upload:
    """Check the bytes of `write_upload` and decode them; the arguments are those of `check_upload`."""
    payload = decode_payload(data, header)
    values = unpack_dense(payload.dense, dense, protocol.dense_sizes, protocol.dense_bits)
    return Upload(payload, protocol.method.codec.decode(payload.body, context, header.seed), values)
