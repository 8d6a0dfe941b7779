"""Complex arrays, such as the weights of Fourier layers, are coded as pairs of real numbers."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from fedmrn_app.plugin import compress_uplink
from fedmrn_app.plugin.arrays import to_record, to_values
from fedmrn_app.plugin.pairs import from_pairs, in_pairs, to_pairs
from fedmrn_app.plugin.settings import FORMS, RECORD, WITH_PACKED, ClientTask, PluginSettings
from tests.plugin.test_replies import reply_of, with_metrics

_DRAW = np.random.default_rng(0)


def _complex(*shape: int) -> NDArray[Any]:
    return _DRAW.normal(0, 1, shape) + 1j * _DRAW.normal(0, 1, shape)


_SENT = {"spectral": _complex(8, 8, 6, 6).astype(np.complex64), "bias": _complex(40), "gain": np.array(1 + 2j)}
_TRAINED = {name: (value + 0.01 * _complex(*value.shape)).astype(value.dtype) for name, value in _SENT.items()}


@given(st.sampled_from([np.complex64, np.complex128]).flatmap(lambda kind: arrays(kind, array_shapes(max_dims=4))))
def test_pairs_are_the_numbers(values: NDArray[Any]) -> None:
    back = from_pairs(to_pairs(values))
    assert (back.dtype, back.shape) == (values.dtype, values.shape)
    np.testing.assert_array_equal(back, values)


@pytest.mark.parametrize("kind", [np.complex64, np.complex128])
@pytest.mark.parametrize("method", [None, "quantized", "topk", "fedavg"])
def test_complex_arrays_are_coded_as_real_ones_are(method: str | None, kind: Any) -> None:
    """Bit for bit, also where they come back in another type than they were sent in; a single number is exact."""
    trained = {**_TRAINED, "spectral": _TRAINED["spectral"].astype(kind)}
    found: Any = arrived(_SENT, trained, method)
    real: Any = arrived(in_pairs(_SENT), in_pairs(trained), method)
    for name, value in trained.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        expected = real[name] if name == "gain" else from_pairs(real[name])
        np.testing.assert_array_equal(found[name], expected)
    np.testing.assert_array_equal(found["gain"], trained["gain"])


def arrived(sent: Any, trained: Any, method: str | None) -> Any:
    content = reply_of({"arrays": sent}, lambda r: with_metrics(arrays=trained), plug_in=True, method=method)
    if method is None:
        assert cast(Any, content["metrics"])["uplink_bytes"] < _TRAINED["spectral"].nbytes / 6
    return to_values(content.array_records["arrays"])


def test_an_older_server_is_sent_complex_arrays_as_they_are() -> None:
    """Servers read them as pairs only if they say so."""
    asked = ClientTask(PluginSettings(method="eden"), seed=1, even=True).record()
    asked[FORMS] = WITH_PACKED
    message = Message(RecordDict({"arrays": to_record(_SENT), RECORD: asked}), 1, "train")

    def app(message: Message, context: Context) -> Message:
        return Message(with_metrics(arrays=_TRAINED), reply_to=message)

    context = Context(0, 1, {}, RecordDict(), {})
    reply = cast(ConfigRecord, compress_uplink(message, context, app).content["arrays"])
    assert "pairs" not in reply
    assert reply["exact"] == b"".join(value.tobytes() for value in _TRAINED.values())
