"""The errors that users see.

Each message is one line with the name of what is wrong, its value and the way out. Programs and tests read the
attributes `code`, `key` and `value` instead of the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class FedMRNError(Exception):
    """Base class of all errors that are shown as one line, without a traceback.

    Attributes:
        code: short fixed name of the reason, such as `range`; empty if the class says enough.
        key: name of what is refused, such as the configuration key `local.lr`; empty if it has no name.
        value: the refused value; None if there is none.
    """

    def __init__(self, message: str, *, code: str = "", key: str = "", value: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.key = key
        self.value = value


class ConfigError(FedMRNError):
    """The configuration has an unknown key, a value out of range, or an impossible combination."""


class DataError(FedMRNError):
    """A data set cannot be reached, read or partitioned as configured."""


class PayloadError(FedMRNError):
    """A payload is refused; the message is the reason."""


class VersionError(PayloadError):
    """An order needs a version that this client does not hold; the server then sends the whole model."""


class RunError(FedMRNError):
    """A run cannot start or continue."""


class BudgetSpent(FedMRNError):
    """A further round would exceed privacy.epsilon; the run ends with the model that it has."""


class StoppedEarly(FedMRNError):
    """No evaluation of the last `evaluation.patience` was better; the run ends with the model that it has."""


class DiedError(RunError):
    """A run's processes exited without reporting a result; the run can resume from its last finished round."""


@contextmanager
def needs_extra(extra: str, key: str, value: object = None) -> Iterator[None]:
    """Turn a failing import of an optional package into one line with the command that installs it.

    Args:
        extra: the extra of this package in pyproject.toml that holds the optional package.
        key: what needs the package, such as `model.name`, or the name of a command.
        value: the value of the key that needs it; None if the key has no value.

    Raises:
        ConfigError: a module that is imported inside the block is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = key if value is None else f"{key}={value}"
        package = (error.name or "a package").partition(".")[0]
        message = f'{name}: needs {package}, which is not installed; pip install "fedmrn[{extra}]"'
        raise ConfigError(message, code="not-installed", key=key, value=value) from None
