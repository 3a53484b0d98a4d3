"""All errors that the package raises on purpose. Each is also a built-in error that a user would expect."""

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
    """The base of all of them.

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
    """A call with an argument that a preset, a part or the server does not have, or without one that it needs."""


class MissingPart(ConfigError, LookupError):
    """A direction, optimizer or staleness policy with this name is not registered, or a setting of it has left."""


class ShapeMismatch(FastaggError, ValueError):
    """An array's shape, length or set of names differs from the model's."""


class DTypeMismatch(FastaggError, TypeError, ValueError):
    """An array's element type is not accepted here."""


class EncodingError(FastaggError, ValueError):
    """Bytes or arrays that are no encoded update: of another length than their header tells, with a scale that is
    negative or not finite, or with indices that are out of range or come twice."""


class NonFiniteUpdate(FastaggError, ValueError):
    """An update (or a model) contains NaN or infinity."""


class UpdateTooLarge(FastaggError, ValueError):
    """An update is finite, but so large that the step could leave the range of float32."""


class UnknownClient(FastaggError, KeyError):
    """The client was never sent a model, or its id is outside 0..num_clients-1."""


class UnknownVersion(FastaggError, KeyError):
    """The client has no open task of that version."""


class AlreadyCounted(UnknownVersion):
    """A second answer to a task, or a second one with the same offset. Nothing has changed: drop it, and acknowledge
    it to whoever sent it.

    Attributes:
        version, applied: those of the first answer's receipt, while the server remembers it: the last 16,384 tasks that
            ended. Otherwise None.
    """

    version: int | None = None
    applied: bool | None = None


class StaleIncarnation(UnknownVersion):
    """The answer is to a task of another incarnation of this server: to a version that a restart has lost."""


class OtherClient(UnknownVersion):
    """The task is another client's, as far as the server remembers. A checkpoint does not say whose an answered task
    was: after a restart this is :class:`AlreadyCounted`."""


class Busy(FastaggError, RuntimeError):
    """A limit is reached (clients, open tasks, waiting answers). Nothing has changed; the same call may work later."""


class TooSoon(FastaggError, RuntimeError):
    """This client has taken part in the step already, where a rule counts clients (``answers_per_step``), or would take
    part too often, or too soon, for a private server. Nothing has changed: wait for the next version."""


class Reentered(FastaggError, RuntimeError):
    """A call that would change the server came from within another call of the same thread: from a rule of a user's
    own, a finalizer or a signal handler. Nothing has changed; make the call when the outer one has returned."""


class NotDurable(FastaggError, RuntimeError):
    """The disk failed, so the call is not acknowledged. Its change may be in the model, but it is not in the
    journal."""


class CheckpointError(FastaggError, ValueError):
    """A checkpoint is damaged, or belongs to another model or algorithm."""


class DataError(FastaggError, ValueError):
    """A data file or folder is missing or not in the expected format."""


class MissingDependency(FastaggError, ImportError):
    """A package that an integration needs is not installed or too old."""


class DeviceError(FastaggError, RuntimeError):
    """A device failed: out of memory, a failed launch, or a driver or a build that does not fit the device."""


class RunFailed(FastaggError, RuntimeError):
    """A run cannot continue: its clients fail, or every answer is refused, and this would repeat. Has the last
    cause."""


class NoMemory(FastaggError, MemoryError):
    """There is no memory left to take an answer, or to say why it is refused."""


NO_MEMORY = NoMemory("there is no memory left for this answer")  # made while there is some
