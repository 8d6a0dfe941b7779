"""The errors that a person may meet.

Each message is one line that names the thing, its value and the way out. Programs and tests read the attributes `code`,
`key` and `value` instead of the text.
"""

from __future__ import annotations


class FedMRNError(Exception):
    """Base class of all errors that are shown as one line, without a traceback.

    Attributes:
        code: short fixed name of what is wrong, such as `range`; empty where the class says enough.
        key: what is wrong, such as the configuration key `local.lr`; empty where there is no such name.
        value: the value that is refused; None where there is none.
    """

    def __init__(self, message: str, *, code: str = "", key: str = "", value: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.key = key
        self.value = value


class ConfigError(FedMRNError):
    """The configuration has an unknown key, a value out of range, or an impossible combination."""


class DataError(FedMRNError):
    """A data set cannot be reached, read or partitioned as asked."""


class PayloadError(FedMRNError):
    """A client's payload is refused; the message is the reason."""


class RunError(FedMRNError):
    """A run cannot start or go on."""


class BudgetSpent(FedMRNError):
    """A further round would exceed privacy.epsilon; the run ends with the model that it has."""


class DiedError(RunError):
    """A run's processes ended without reporting a result; the run can resume from its last finished round."""
