"""What the server sends a client beside the arrays: the method's settings, the round's seed and the noise's scale."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord
from numpy.typing import NDArray

from fedmrn_app.environment import release
from fedmrn_app.errors import ConfigError, PayloadError
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.upload import CheckedUpload, check_upload, header_of
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods import build_method, find_method, find_methods
from fedmrn_app.methods.fedavg import Floats
from fedmrn_app.methods.method import Method, RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Distribution, Noise
from fedmrn_app.plugin.arrays import Parts, Values
from fedmrn_app.plugin.bounded import unpack_bounded
from fedmrn_app.plugin.kept import matrices, put_back
from fedmrn_app.plugin.scales import SCALES, Exponents, rescaled
from fedmrn_app.validation import build, nearest
from fedmrn_app.wire.dense import DENSE_BITS
from fedmrn_app.wire.primitives import all_finite

DEFAULT_METHOD = "eden"  # of the methods that need no change in the training; see `plugin/fidelity.py`
SIZED_METHOD = "quantized"  # the same where options are given, such as a size
DEFAULT_SECURE = "fedavg"  # of those whose updates can be added up
DEFAULT_ALPHA = 0.01  # scale of the noise
DEFAULT_DENSE_BITS = 6  # per value of biases and statistics
FORMAT = 1  # of the records of messages and replies; another number is not read
LATER_FORMAT = 2  # of arrays on a lattice in a form that clients of format 1 cannot read
WHOLE_FORMAT = 3  # of arrays on a lattice with whole ones beside it, or with complex ones on it
RECORD = "fedmrn"  # record of a message, with the client's task
GRID = "fedmrn-grid"  # record of a message whose arrays are on a lattice
SECURE = "fedmrn-secure"  # record of a message of a secure sum, and of the client's state with its secrets
SECURE_BITS = 24  # of one client's change of a value in a secure sum
SECURE_BOUND = 8.0  # of the size of such a change
REFUSED = "refused"  # field of a reply of a client that could not read the records
EVEN = "even"  # field of a message: the client is to code all tensors with about the same relative error
FORMS = "forms"  # field of a message: the server reads replies with arrays of their own order, number and types
WITH_SCALES = 2  # in that field: it also reads scales of tensors with every method
WITH_PACKED = 3  # in that field: it also reads exact tensors that are packed
WITH_PAIRS = 4  # in that field: it also reads complex tensors that are coded as pairs of real numbers
PACKED = "packed"  # field of a reply with them
DIFFERENCES = "differences"  # field of a message: replies are differences from the arrays that are sent
WITHOUT_ARRAYS = "without-arrays"  # field of a reply in which the app sends no arrays that could be coded
BESIDE = "fedmrn-beside:"  # before the key of coded arrays: record of those that Flower sends as they are
WITHOUT_MASKS = "without-masks"  # entry of a reply whose update is coded by EDEN instead of learned masks


def usual_options(method: str, options: Mapping[str, Any], *, secure: bool) -> dict[str, Any]:
    """Return the options of a method with those that the plug-in takes where none are given.

    `signsgd` sends what an update leaves out with the next one. Signs alone are drawn with so much noise that nothing
    is learned from few clients.
    """
    given = dict(options)
    if method == "signsgd":
        given.setdefault("error_feedback", True)
    if secure and method in ("fedmrn", "fedmrns"):
        given["shared_noise"] = True
    return given


def usual_dense_bits(method: str) -> int:
    """Return the bits per value of the dense part where none are given; `fedavg` sends all values as they are."""
    return 32 if method == "fedavg" else DEFAULT_DENSE_BITS


def default_method(options: Mapping[str, Any]) -> str:
    """Return the method for options of the plug-in that name none."""
    if options.get("secure"):
        return DEFAULT_SECURE
    sized = options.get("options") or options.get("bits") is not None or options.get("budget") is not None
    return SIZED_METHOD if sized else DEFAULT_METHOD


class OtherFormatError(PayloadError):
    """The server's plug-in speaks another format than the client's; the client then trains as without the plug-in."""


def format_fields(number: int = FORMAT) -> dict[str, int | str]:
    """Return the fields of a record by which the client knows the server's format."""
    return {"format": number, "release": release()}


def check_format(record: ConfigRecord, unknown: str = "", most: int = FORMAT) -> None:
    """Check that this side can read a record of the other one.

    Args:
        record: with the fields of `format_fields`; a record without them has format 1.
        unknown: what the record has that this side does not know; empty for nothing.
        most: the latest format that this side can read.

    Raises:
        OtherFormatError: the record has another format, or something unknown.
    """
    number, theirs = record.get("format", 1), str(record.get("release", "of an unknown version"))
    if number not in range(FORMAT, most + 1) or unknown:
        raise OtherFormatError(
            f"the server's plug-in (fedmrn {theirs}, format {number!r}) asks for "
            f"{unknown or 'what'} this client (fedmrn {release()}, format {most}) does not know; install the same "
            "fedmrn on both",
            code="format",
            value=number,
        )


@dataclass(frozen=True, kw_only=True)
class PluginSettings:
    """What is the same for all clients and rounds.

    Attributes:
        method: name of the method.
        options: options of the method, as `strategy=NAME` has them.
        distribution: distribution of the seeded noise.
        alpha: scale of the noise; with `bits` the first scale follows from it.
        bits: bits of a whole reply per parameter to which the scale is controlled; None for a fixed scale.
        dense_bits: bits per value of the dense part, see `wire/dense.py`.
        seed: 56-bit seed of everything random.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    distribution: Distribution = "uniform"
    alpha: float = DEFAULT_ALPHA
    bits: float | None = None
    dense_bits: int = DEFAULT_DENSE_BITS
    seed: int = 0

    def build(self, *, secure: bool = False) -> Method:
        """Build the method.

        Args:
            secure: whether clients mask the same noise, for a sum of their masks.

        Raises:
            ConfigError: the method or an option does not work on an app's arrays.
        """
        noise = build(Noise, {"distribution": self.distribution, "alpha": self.alpha})
        if find_method(self.method) is None:
            names = _usable_names()
            reason = f"no such method{nearest(str(self.method).lower(), names)}; choose one of {', '.join(names)}"
            raise ConfigError(f"method={self.method}: {reason}", code="choice", key="method", value=self.method)
        run = RunOptions(noise, self.seed, bits=self.bits)
        method = build_method(self.method, self.options, run, "options")
        if secure and not method.training.learns_masks and self.method != "fedavg":
            reason = f"method={self.method}: its codes cannot be added up, which secure=True needs"
            reason += "; choose fedavg, fedmrn or fedmrns"
            raise ConfigError(reason, code="choice", key="method", value=self.method)
        if not replace(method, shared_seed=method.shared_seed and not secure).works_on_arrays:
            reason = f"works in the fedmrn command only; choose one of {', '.join(_usable_names())}"
            raise ConfigError(f"method={self.method}: {reason}", code="choice", key="method", value=self.method)
        if self.bits is not None and method.rate_control is None:
            reason = f"bits={self.bits:g}: {self.method} has no noise whose scale could be set; leave bits out, or say "
            reason += 'method="fedmrn"'
            raise ConfigError(reason, code="unused", key="bits", value=self.bits)
        if self.dense_bits not in DENSE_BITS:
            reason = f"dense_bits={self.dense_bits}: must be one of {', '.join(map(str, DENSE_BITS))}"
            raise ConfigError(reason, code="choice", key="dense_bits", value=self.dense_bits)
        return method


def sets_own_scales(method: Method) -> bool:
    """Return whether clients may set the scale of the noise: `scales.gain_of` holds for some masks only."""
    if not method.training.learns_masks:
        return False
    from fedmrn_app.methods.fedmrn import NoiseMask  # a method is loaded where it is used

    codec = method.codec
    return isinstance(codec, NoiseMask) and codec.noise.distribution == "uniform" and not codec.kind.deterministic


def check_own_scales(method: Method) -> None:
    """Check that clients may set the scale of the noise.

    Raises:
        ConfigError: the noise is not uniform, or the masks are drawn after the training or not drawn at all.
    """
    if not sets_own_scales(method):
        reason = "alpha=auto: clients set the scale of uniform noise under masks that are drawn in each step"
        way_out = "leave noise and options={'masking': ...} out, or give alpha a number"
        raise ConfigError(f"{reason}; {way_out}", code="conflict", key="alpha", value="auto")


def _usable_names() -> list[str]:
    run = RunOptions(Noise())
    return [name for name in find_methods() if build_method(name, {}, run).works_on_arrays]


@dataclass(frozen=True)
class ClientTask:
    """What one client is asked in one round.

    Attributes:
        settings: of the run.
        seed: 64-bit seed that this client is given.
        scale: scale of the noise in this round; None for that of the settings.
        own_scales: whether clients set scales by themselves; None if the server cannot read them.
        server_round: number of the round, from 1; 0 from a server that does not tell it.
        client: number of the client among those that are asked in the round.
        run: name of the run, under which the client keeps residuals on its disk; None to keep nothing there.
        even: whether the client divides each tensor of its update by about its size before it is coded.
        forms: whether the server reads what `plugin/reply_form.py` describes; older ones do not.
        checks: whether the client checks what arrives of each tensor, see `plugin/self_check.py`; older servers do not
            read the scales that it may need.
        packs: whether the server reads exact tensors that are packed, see `plugin/exact.py`; older ones do not.
        pairs: whether the server reads complex tensors as pairs, see `plugin/pairs.py`; older ones do not.
        differences: whether the arrays of the reply are known to be differences from those that were sent.
    """

    settings: PluginSettings
    seed: int
    scale: float | None = None
    own_scales: bool | None = None
    server_round: int = 0
    client: int = 0
    run: str | None = None
    even: bool = False
    forms: bool = True
    checks: bool = True
    differences: bool = False
    packs: bool = True
    pairs: bool = True

    def record(self) -> ConfigRecord:
        """Return the record of a message."""
        terms = json.dumps(vars(self.settings), separators=(",", ":"))
        place = {"round": self.server_round, "client": self.client}
        record = ConfigRecord({"terms": terms, "seed": self.seed, FORMS: WITH_PAIRS, **place, **format_fields()})
        if self.scale is not None:
            record["scale"] = self.scale
        if self.own_scales is not None:
            record[SCALES] = self.own_scales
        if self.run is not None:
            record["run"] = self.run
        if self.even:
            record[EVEN] = True
        if self.differences:
            record[DIFFERENCES] = True
        return record

    def without_masks(self) -> ClientTask:
        """Return the task of a client that sends an update by EDEN instead of the masks that it was asked for."""
        return replace(self, settings=replace(self.settings, method="eden", options={}, bits=None), even=False)

    @classmethod
    def read(cls, record: ConfigRecord) -> ClientTask:
        """Return the task of a record, the inverse of `record`.

        Raises:
            OtherFormatError: the server's version has other fields or methods than this one.
        """
        check_format(record)
        values = cast(Mapping[str, Any], record)
        terms = json.loads(values["terms"])
        if other := [name for name in terms if name not in PluginSettings.__dataclass_fields__]:
            check_format(record, f"the setting {', '.join(other)}, which")
        if find_method(str(terms["method"])) is None:
            check_format(record, f"the method {terms['method']}, which")
        return cls(
            PluginSettings(**terms),
            values["seed"],
            values.get("scale"),
            values.get(SCALES),
            server_round=values.get("round", 0),
            client=values.get("client", 0),
            run=values.get("run"),
            even=bool(values.get(EVEN)),
            forms=bool(values.get(FORMS)),
            checks=values.get(FORMS, 0) >= WITH_SCALES,
            packs=values.get(FORMS, 0) >= WITH_PACKED,
            pairs=values.get(FORMS, 0) >= WITH_PAIRS,
            differences=bool(values.get(DIFFERENCES)),
        )


@dataclass(frozen=True)
class RoundContext:
    """What the server and a client both know of a round.

    Attributes:
        protocol: how the payload is written and read.
        parts: the tensors by how they are sent back.
        context: what the method's codec needs.
        dense: the dense part that the client was sent, float32 (m,).
    """

    protocol: RunProtocol
    parts: Parts
    context: SharedContext
    dense: Float32Array

    @classmethod
    def of(cls, method: Method, task: ClientTask, values: Values, ways: NDArray[np.uint8]) -> RoundContext:
        """Build the context from the arrays that were sent and the ways in which they are sent back.

        Raises:
            PayloadError: an array is not finite.
        """
        parts = Parts.of(values, ways)
        vector, dense = parts.vector(values), parts.dense_vector(values)
        if not (all_finite(vector) and all_finite(dense)):
            raise PayloadError("the arrays that the server sent are not finite", code="not-finite")
        if not parts.coded:  # most codecs code no empty vector
            method = replace(method, codec=Floats(), error_feedback=False)
        protocol = RunProtocol(
            method=method,
            layout=parts.layout,
            dense_sizes=parts.dense_sizes,
            initial=vector,
            seed=task.settings.seed,
            dense_bits=task.settings.dense_bits,
            sends_uneven_exactly=False,
        )
        # A client that joins late does not know the first vector, so how far weights have moved is not used.
        known = SharedContext(parts.layout, vector, vector).with_scale(task.scale)
        return cls(protocol, parts, known, dense)

    def mean_update(self, masks: Float32Array, seed: int) -> Float32Array:
        """Return the update of a mean of masks of shared noise, float32 (d,); `masks` is overwritten."""
        self.protocol.method.codec.finish(masks, self.context, seed)
        return masks

    def decode(
        self,
        values: Values,
        seed: int,
        data: bytes,
        exact: bytes,
        exponents: Exponents | None = None,
        bounded: bytes = b"",
        kept: bytes = b"",
    ) -> tuple[Values, CheckedUpload]:
        """Return the arrays that a reply stands for, and its checked payload.

        Args:
            values: the arrays that the reply's are coded from.
            seed: of the task.
            data: the payload.
            exact: the tensors that are sent byte for byte.
            exponents: of the scales that the client set by itself.
            bounded: the tensors that are sent with a bound on the error of each value.
            kept: the rows and zeros of coded tensors that their code must not move.

        Raises:
            PayloadError: the reply is not what was asked for.
        """
        header = header_of(self.protocol, seed, 1, self.context.count)
        upload = check_upload(data, self.protocol, header, self.context, self.dense)
        parts, wide = self.parts, any(values[name].dtype == np.float64 for name in self.parts.coded)
        update = np.zeros_like(self.context.vector) if wide or exponents is not None else None
        if update is None:
            vector = self.context.vector.copy()
            upload.contribution.add_to(vector, np.float32(1))
        else:
            upload.contribution.add_to(update, np.float32(1))
            if exponents is not None:
                rescaled(update, parts.layout, exponents, 1, out=update)
            vector = np.add(self.context.vector, update, out=None if wide else update)
        found = parts.replaced(values, vector, upload.dense, exact)
        if wide and update is not None:
            found |= parts.moved_in_float64(values, update)
        put_back(kept, matrices(parts, values), values, found)
        found |= unpack_bounded(bounded, parts.bounded, values)
        return found, upload
