"""The errors a person may meet; each message is one line that names the thing, its value and the way out."""

import re


class FedMRNError(Exception):
    """Base of all errors that are shown as one line, without a traceback."""


class ConfigError(FedMRNError):
    """The configuration has an unknown key, a value out of range, or an impossible combination."""


class DataError(FedMRNError):
    """A data set cannot be reached, read or partitioned as asked."""


class PayloadError(FedMRNError):
    """A client's payload is refused; the message is the reason."""


class RunError(FedMRNError):
    """A run cannot start or go on."""


def remote_reason(error: str) -> str:
    """What a client's process said, out of the traceback that Flower and Ray wrap around it, in one line."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", error)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    last = lines[-1] if lines else "no reason given"
    return re.sub(r"^Exception \w+ occurred\. Message: ", "", last).removesuffix("'>")
