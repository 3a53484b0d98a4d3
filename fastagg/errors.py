"""All errors that the package raises on purpose. Each error is also one of Python's built-in errors."""

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
    """A setting is out of range, unknown, or cannot be combined with another one."""


class WrongArguments(ConfigError, TypeError):
    """A call has an argument that a preset, a part or the server does not know, or lacks an argument that it needs."""


class MissingPart(ConfigError, LookupError):
    """A direction, optimizer or staleness policy with this name is not registered, or one of its settings no longer
    exists."""


class ShapeMismatch(FastaggError, ValueError):
    """An array's shape, length or set of names differs from the model's."""


class DTypeMismatch(FastaggError, TypeError, ValueError):
    """An array's element type is not accepted here."""


class EncodingError(FastaggError, ValueError):
    """The bytes or arrays are no encoded update: their length differs from the header's, a scale is negative or not
    finite, or an index is out of range or repeated."""


class NonFiniteUpdate(FastaggError, ValueError):
    """An update (or a model) contains NaN or infinity."""


class UpdateTooLarge(FastaggError, ValueError):
    """An update is finite, but so large that the step could leave the range of float32."""


class UnknownClient(FastaggError, KeyError):
    """The client was never sent a model, or its id is outside 0..num_clients-1."""


class UnknownVersion(FastaggError, KeyError):
    """The client has no open task of that version."""


class AlreadyCounted(UnknownVersion):
    """A task has a second answer, or an answer has an offset that has counted already. Nothing has changed. Drop the
    answer, and acknowledge it to its sender.

    Attributes:
        version, applied: as in the first answer's receipt, while the server remembers this receipt (for the last 16,384
            ended tasks). Otherwise None.
    """

    version: int | None = None
    applied: bool | None = None


class StaleIncarnation(UnknownVersion):
    """The answer's task is of another incarnation of this server. A restart has lost the task's version."""


class OtherClient(UnknownVersion):
    """The task belongs to another client. For an answered task the error is :class:`AlreadyCounted` after a restart,
    because a checkpoint does not record whose task it was."""


class Busy(FastaggError, RuntimeError):
    """A limit is reached (clients, open tasks, waiting answers). Nothing has changed. The same call may work later."""


class TooSoon(FastaggError, RuntimeError):
    """The client may not take part in this step. Either the rule counts clients (``answers_per_step``) and the client
    has taken part already, or a private server limits how often and how soon a client may take part. Nothing has
    changed. Wait for the next version."""


class Reentered(FastaggError, RuntimeError):
    """A call that would change the server came from within another call of the same thread: from a user's own rule, a
    finalizer or a signal handler. Nothing has changed. Make the call after the outer call has returned."""


class NotDurable(FastaggError, RuntimeError):
    """The disk failed, so the call is not acknowledged. The call's change may be in the model, but is not in the log on
    the disk."""


class CheckpointError(FastaggError, ValueError):
    """A checkpoint is damaged, or belongs to another model or algorithm."""


class DataError(FastaggError, ValueError):
    """A data file or folder is missing or not in the expected format."""


class MissingDependency(FastaggError, ImportError):
    """A package that an integration needs is not installed or too old."""


class DeviceError(FastaggError, RuntimeError):
    """A device failed: out of memory, a failed launch, or a driver or a build that does not fit the device."""


class RunFailed(FastaggError, RuntimeError):
    """A run cannot continue: its clients fail, or every answer is refused, and this would happen again. The error's
    ``__cause__`` is the last failure."""


class NoMemory(FastaggError, MemoryError):
    """There is no memory left to take an answer, or to say why it is refused."""


NO_MEMORY = NoMemory("there is no memory left for this answer")  # made in advance, while there is memory
