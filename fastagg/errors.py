"""Every error the package raises on purpose. Each is also the built-in error a user would think of catching."""


class FastaggError(Exception):
    """Base of all of them."""

    def __str__(self) -> str:  # KeyError would print the repr of its message
        return str(self.args[0]) if self.args else ""


class ConfigError(FastaggError, ValueError):
    """A setting is out of range, unknown, or does not go with another one."""


class UnknownSetting(ConfigError, TypeError):
    """A keyword argument that a preset, or the server, does not have."""


class MissingPart(ConfigError, LookupError):
    """A direction, optimizer or staleness policy that nobody registered under its name."""


class ShapeMismatch(FastaggError, ValueError):
    """An array has another shape, length or set of names than the model."""


class DTypeMismatch(FastaggError, TypeError, ValueError):
    """An array has an element type that is not accepted here."""


class NonFiniteUpdate(FastaggError, ValueError):
    """An update (or a model) holds NaN or infinity."""


class UpdateTooLarge(FastaggError, ValueError):
    """An update is finite, but so large that what it is multiplied by or added to would leave the range of float32."""


class UnknownClient(FastaggError, KeyError):
    """The client was never sent a model, or its id is outside 0..num_clients-1."""


class UnknownVersion(FastaggError, KeyError):
    """The client holds no unanswered model of that version."""


class OtherLife(UnknownVersion):
    """The answer is to a task of another life of this server: a version that a restart has lost."""


class Busy(FastaggError, RuntimeError):
    """A limit is reached (clients, open tasks, waiting answers). Nothing has changed: the same call may do later."""


class NotDurable(FastaggError, RuntimeError):
    """The disk refuses, so nothing is acknowledged: what raises this may be in the model, and is not in the journal."""


class CacheError(FastaggError, OSError):
    """The disk that has the clients' rows refuses: it is full, it fails, or a row is damaged. Nothing has changed."""


class RankLost(FastaggError, RuntimeError):
    """A rank of a sharded server died, stopped or could not follow. The others cannot go on without its slice."""


class NotSharded(ConfigError, AttributeError):
    """A sharded server does not have this method of :class:`fastagg.Server`, or not on this rank."""


class NotDelivered(FastaggError, LookupError):
    """A rank does not hold its slice of an answer. Nothing has changed: the same call will do when it was delivered."""


class CheckpointError(FastaggError, ValueError):
    """A checkpoint is damaged, or belongs to another model or algorithm."""


class DataError(FastaggError, ValueError):
    """A data file or folder is missing or not in the expected format."""


class MissingDependency(FastaggError, ImportError):
    """A package that an integration needs is not installed, or too old."""


class DeviceError(FastaggError, RuntimeError):
    """A device refused: out of memory, a failed launch, a driver or a build that does not fit the card."""


class RunFailed(FastaggError, RuntimeError):
    """A run cannot go on: its clients fail, or send what is refused, and would again. It carries the last cause."""
