"""The errors a person may meet; each message is one line that names the thing, its value and the way out."""


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


class DiedError(RunError):
    """A run's processes ended without a word; it can go on from its last finished round."""
