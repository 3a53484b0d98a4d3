"""How a client's reply is read, whatever framework carried it: what it says of itself, and how it is folded in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from fastagg import _checks, lora
from fastagg.errors import ConfigError, FastaggError, UnknownVersion
from fastagg.parts.names import Kind
from fastagg.serving.dispatch import Dispatch
from fastagg.serving.server import Answer, Outcome, Server

KINDS = ("model", "difference", "delta", "gradient", "lora")


@dataclass(frozen=True)
class Reply:
    """One client's answer to one task.

    Attributes:
        arrays: what it sent, in the form of the server's model.
        kind: ``model``, the trained model; ``difference``, every array as trained minus sent, BatchNorm's statistics
            too; ``delta``, what ``Server.receive`` takes: parameters as differences, statistics as they are;
            ``gradient``, for ACE, ACED, ASGD; ``lora``, adapters whose products are the delta (:mod:`fastagg.lora`).
        version: the version that the client says it trained from; None where it does not say.
        samples: its number of samples; None where it does not say.
        control: FedAC's change of the control variate, flat [d].
        scale: of ``lora``: ``lora_alpha / rank``.
    """

    arrays: Any
    kind: str = "model"
    version: int | None = None
    samples: float | None = None
    control: Tensor | None = None
    scale: float = 1.0

    @classmethod
    def read(cls, arrays: Any, told: Mapping[str, Any], *, prefix: str = "fastagg-", **more: Any) -> Reply:
        """A reply whose note ``told`` (a config record, a meta dict) may say its kind, version and scale, as in
        ``<prefix>kind``.

        Args:
            more: the other attributes; ``kind`` there is what an unsaid kind means.

        Raises:
            ConfigError: the kind is none of :data:`KINDS`, the version is no whole number, the scale no number.
        """
        if f"{prefix}kind" in told:
            more["kind"] = _checks.one_of(f"{prefix}kind", told[f"{prefix}kind"], KINDS)
        if f"{prefix}version" in told:
            more["version"] = version = told[f"{prefix}version"]
            if isinstance(version, bool) or not isinstance(version, int):
                raise ConfigError(f"{prefix}version: expected a whole number, got {version!r}")
        if f"{prefix}scale" in told:
            more["scale"] = _checks.number(f"{prefix}scale", told[f"{prefix}scale"])
        return cls(arrays, **more)


def take(server: Server, answers: Sequence[tuple[Dispatch, Reply]]) -> list[Outcome]:
    """Fold answers to tasks into the server, those that are models in as few passes over memory as there are steps.

    Returns:
        For each its receipt, or the error with which it was refused; it has changed nothing then.
    """
    outcomes: list[Outcome | None] = [None] * len(answers)
    folded: dict[bool, dict[int, Answer]] = {False: {}, True: {}}  # models; differences
    for i, (task, reply) in enumerate(answers):
        try:
            if reply.version not in (None, task.version):
                raise UnknownVersion(f"it is from version {reply.version}, its task was version {task.version}")
            if reply.kind in ("model", "difference") and server.update_kind != "delta":
                raise ConfigError(
                    f"this server takes updates of kind {server.update_kind!r}, got one of kind {reply.kind!r}"
                )
            if reply.kind == "difference":
                folded[True][i] = (task, task.from_difference(reply.arrays), reply.samples)
            elif reply.kind == "model" and reply.control is None:
                folded[False][i] = (task, reply.arrays, reply.samples)
            else:
                outcomes[i] = _received(server, task, reply)
        except FastaggError as error:
            outcomes[i] = error
    for differences, rows in folded.items():
        if rows:
            found = server.receive_models(list(rows.values()), differences=differences)
            for i, outcome in zip(rows, found, strict=True):
                outcomes[i] = outcome
    return [outcome for outcome in outcomes if outcome is not None]


def _received(server: Server, task: Dispatch, reply: Reply) -> Outcome:
    update, kind = reply.arrays, reply.kind
    if kind == "model":
        update, kind = task.delta(reply.arrays), "delta"
    elif kind == "lora":
        shapes = {entry.name: entry.shape for entry in server.layout.entries}
        update, kind = lora.products(reply.arrays, shapes, reply.scale), "delta"
    return server.receive(
        task.client, update, task.version, reply.samples, kind=cast(Kind, kind), control=reply.control
    )
