"""The errors that the package raises. All are derived from :class:`FastaggError` and from Python's built-in errors."""

__all__ = [
    "AlreadyCounted",
    "Busy",
    "CheckpointError",
    "ConfigError",
    "DTypeMismatch",
    "DataError",
    "DeviceError",
    "EncodingError",
    "FastaggError",
    "MissingDependency",
    "NonFiniteUpdate",
    "NotDurable",
    "OtherClient",
    "Reentered",
    "RunFailed",
    "ShapeMismatch",
    "StaleIncarnation",
    "TooSoon",
    "UnknownClient",
    "UnknownVersion",
    "UpdateTooLarge",
]


class FastaggError(Exception):
    """The base class of all errors of fastagg.

    Example:
        >>> try:
        ...     fastagg.FedBuff(torch.zeros(2), buffer_size=0)
        ... except fastagg.FastaggError as error:
        ...     print(type(error).__name__)
        ConfigError
    """

    def __str__(self) -> str:  # KeyError would print the repr of its message
        return str(self.args[0]) if self.args else ""


class ConfigError(FastaggError, ValueError):
    """A setting or another argument is out of range, unknown, or cannot be combined with another one."""


class WrongArguments(ConfigError, TypeError):
    """A call has an argument that a preset, a part or the server does not know, or lacks an argument that it needs."""


class MissingPart(ConfigError, LookupError):
    """A saved server has a direction, an optimizer or a staleness policy that is not registered
    (:func:`fastagg.register`). :func:`fastagg.load` raises CheckpointError in its place."""


class ShapeMismatch(FastaggError, ValueError):
    """An array's shape, length or set of names differs from the model's."""


class DTypeMismatch(FastaggError, TypeError, ValueError):
    """An array has an element type, a layout or a device that the called function does not accept."""


class EncodingError(FastaggError, ValueError):
    """Bytes or arrays are not a valid encoded update. For example their length differs from the header's, a scale is
    negative or not finite, or an index is out of range or repeated."""


class NonFiniteUpdate(FastaggError, ValueError):
    """An update (or a model) contains NaN or infinity."""


class UpdateTooLarge(FastaggError, ValueError):
    """An update is finite, but so large that a sum or the model could leave the range of its type."""


class UnknownClient(FastaggError, KeyError):
    """The server does not know the client: it was never sent a model or was forgotten, or its id is refused."""


class UnknownVersion(FastaggError, KeyError):
    """The client has no open task of that version, or the task has ended without an answer (lease, ``forget``). For an
    upload also: a newer upload has replaced this one."""


class AlreadyCounted(UnknownVersion):
    """The task was answered before, or the answer's offset is not above the last one that counted. Nothing has changed.
    Drop the answer, and acknowledge it to its sender.

    Attributes:
        version, applied: as in the receipt of the task's first answer. None: the server no longer knows (it remembers
            the last 16,384 ended tasks), or the offset is the reason.
    """

    version: int | None = None
    applied: bool | None = None


class StaleIncarnation(UnknownVersion):
    """The answer's task was sent by another server, or by this server before a restart that has lost the task or its
    version."""


class OtherClient(UnknownVersion):
    """The task belongs to another client. If the task was answered before a restart, the error is
    :class:`AlreadyCounted`, because a checkpoint does not contain the clients of ended tasks."""


class Busy(FastaggError, RuntimeError):
    """A limit is reached (clients, open tasks, waiting answers), another server has the folder open, or another upload
    of the same update is in use. Nothing has changed. The same call may work later."""


class TooSoon(FastaggError, RuntimeError):
    """The client may not take part in this step. Either the rule counts clients (``answers_per_step``) and the client
    has taken part already, or a private server limits how often and how soon a client may take part. Nothing has
    changed. Wait for the next version."""


class Reentered(FastaggError, RuntimeError):
    """A call that would change the server came from within another call of the same thread: from a user's own rule, a
    finalizer or a signal handler. Nothing has changed. Make the call after the outer call has returned."""


class NotDurable(FastaggError, RuntimeError):
    """The disk failed, so the call is not acknowledged. Its change may be in the model, but not on the disk."""


class CheckpointError(FastaggError, ValueError):
    """A checkpoint or a server's folder is missing, damaged, of another model or algorithm, or cannot be written."""


class DataError(FastaggError, ValueError):
    """A data file or folder is missing or not in the expected format."""


class MissingDependency(FastaggError, ImportError):
    """A package that fastagg or one of its features needs is not installed, or is too old."""


class DeviceError(FastaggError, RuntimeError):
    """A device failed: out of memory, a failed launch, or a driver or a build that does not fit the device."""


class RunFailed(FastaggError, RuntimeError):
    """A run cannot continue, for example because its clients fail again and again, or every answer is refused. The
    message has the reason."""


class NoMemory(FastaggError, MemoryError):
    """There is no memory left to take an answer, or to make the error that refuses the answer."""


NO_MEMORY = NoMemory("there is no memory left for this answer")  # made at import, while there is memory
