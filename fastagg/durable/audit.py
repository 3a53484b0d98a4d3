"""Audits a server: executes its log again, and compares the results with its checkpoints and receipts. An audit writes
nothing and takes no lock, so it may run while the server runs, or on a copy of the folder on another machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

from fastagg import _checks
from fastagg._types import Native, Plain, State
from fastagg.durable import folder, trees
from fastagg.durable.disk import Disk, named
from fastagg.durable.doctor import server_of
from fastagg.durable.folder import Checkpoint, Contents, checkpoint_name, contents, is_gone, read_checkpoint, read_log
from fastagg.durable.recovery import Replay
from fastagg.errors import CheckpointError, ConfigError, FastaggError
from fastagg.server.server import Server

_COMPARED = "version", "steps", "flat", "moments", "direction"  # the keys of a state whose values are compared


class _Differs(Exception):
    """Raised at the first difference that an audit finds."""


def audit(
    path: str | os.PathLike[str],
    *,
    start: int | None = None,
    receipts: Iterable[Any] = (),
    make: Callable[[], Server] | None = None,
) -> Plain:
    """Execute the log of a server's folder again. Compare the results with the recorded decisions, with the states in
    later checkpoints, and with the digests in ``receipts``.

    Args:
        path: a folder of :func:`fastagg.open`, or a copy of it. The server may be running.
        start: the number of the checkpoint at which the audit starts. None: the oldest checkpoint.
        receipts: receipts with a digest, or dictionaries with a record's number and digest: ``record`` and ``digest``.
        make: a function that makes the server. Needed only for FedEcho, or if a part is not registered.

    Returns:
        Plain data: ``path``, ``same`` (whether there is no difference), ``problem`` (the first difference or damage, or
        None), ``where`` (the file and byte of the problem, or None), ``start`` (the number of the first checkpoint),
        ``last`` (the number of the last executed record), ``counts`` (the number of operations of each kind),
        ``version``, ``digest`` (the hash of the records up to ``last``) and ``model`` (the SHA-256 of the parameters).
        The processor has no effect on ``digest`` and ``model``.

    Raises:
        CheckpointError: there is no checkpoint, or no server can be made from the checkpoint's settings.
        ConfigError: ``make`` makes a server with other settings.

    Example:
        >>> with fastagg.open("state/", lambda: fastagg.FedBuff(torch.zeros(2), buffer_size=1)) as server:
        ...     task = server.dispatch("ann")
        ...     receipt = server.receive("ann", torch.ones(2))
        >>> found = fastagg.audit("state/", receipts=[receipt])
        >>> found["same"], found["version"], found["digest"] == receipt.digest
        (True, 1, True)
    """
    path = _checks.path("path", path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: expected a folder of fastagg.open(path, make)")
    wanted = {}
    for receipt in receipts:
        try:
            fields = receipt if isinstance(receipt, dict) else {"record": receipt.sequence, "digest": receipt.digest}
            record, digest = fields["record"], fields["digest"]
        except (LookupError, AttributeError):
            raise ConfigError(_checks.wrong("receipts", "receipts, or dicts with record and digest", receipt)) from None
        if digest is None:
            raise ConfigError("receipts: one has no digest; read receipt.digest when receipt.durable is true")
        wanted[_checks.whole("receipts: record", record, least=1)] = digest
    with named(path), Disk(path) as disk:
        return _audited(disk, start, wanted, make)


def _audited(disk: Disk, start: int | None, wanted: dict[int, str], make: Callable[[], Server] | None) -> Plain:
    listing = contents(disk)
    if not listing.checkpoints or (start is not None and start not in listing.checkpoints):
        names = ", ".join(map(str, listing.checkpoints)) or "none"
        raise CheckpointError(f"{disk.path}: no checkpoint {start if start is not None else ''}: there are: {names}")
    begin = read_checkpoint(disk, listing.checkpoints[0] if start is None else start)
    server = server_of(disk, begin, "audit", make)
    run = _Audit(server, disk, listing, begin, wanted)
    problem, where = None, None
    try:
        run.check_checkpoint(begin)
        run.whole()
    except (_Differs, FastaggError, OSError) as error:
        problem, where = str(error), run.where
    return {
        "path": str(disk.path), "same": problem is None, "problem": problem, "where": where, "start": begin.sequence,
        "last": run.last, "counts": run.counts, "version": server.version,
        "digest": run.digest.hex(), "model": folder.model_digest(server.flat),
    }  # fmt: skip


class _Audit(Replay):
    """Executes the records after a checkpoint, until the first difference. ``wanted``: record -> receipt's digest."""

    def __init__(
        self, server: Server, disk: Disk, listing: Contents, begin: Checkpoint, wanted: dict[int, str]
    ) -> None:
        super().__init__(server, disk, listing)
        self.begin, self.wanted = begin, wanted
        self.last = begin.sequence
        self.digest = begin.digest  # the digest of all records up to `last`
        self.reader: Native = None
        self.where: str | None = None  # the file and the byte of the record that was read last

    def whole(self) -> None:
        """Execute all records, and compare the results. A record that seems damaged is read once more, because a
        running server may have been writing the record."""
        self._read()
        while (record := self._next()) is not None:
            self._at(record.place)
            self.one(record)
            self.last, self.digest = record.sequence, self.reader.digest
            if self.wanted.get(self.last, self.digest.hex()) != self.digest.hex():
                raise _Differs(f"record {self.last}: the receipt's digest is another: a record up to it was changed")
            if record.sequence in self.listing.checkpoints:
                self._check_there(record.sequence)
        self._at(self.reader.end[:2])
        missing = [record for record in self.wanted if record > self.last]
        if missing:
            raise _Differs(f"the log ends with record {self.last}, and there is a receipt of record {max(missing)}")

    def _check_there(self, sequence: int) -> None:
        try:
            checkpoint = read_checkpoint(self.disk, sequence)
        except (CheckpointError, OSError):
            if not is_gone(self.disk, sequence):
                raise
        else:
            self.check_checkpoint(checkpoint)

    def check_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Compare a checkpoint with the server, which has executed the same records."""
        name = checkpoint_name(checkpoint.sequence)
        if checkpoint.model != folder.model_digest(checkpoint.state["flat"]):
            raise _Differs(f"{name}: its model is not the one whose hash it has")
        if checkpoint.digest != self.digest:
            raise _Differs(f"{name}: the records before it were others: one of them was changed, or the checkpoint was")
        if checkpoint is self.begin:
            return
        own, recorded = (_parts(state, _COMPARED) for state in (self.server.state_dict(copy=False), checkpoint.state))
        differ = [key for key in {**own, **recorded} if not _equal(own.get(key), recorded.get(key))]
        if differ:
            raise _Differs(f"{name}: it is not what the log leads to: {', '.join(differ[:5])}")

    def _read(self) -> None:
        """Make a reader that begins after the last executed record."""
        after = self.begin._replace(sequence=self.last, digest=self.digest, log_end=self.last)
        self.reader = read_log(self.disk, self.listing, after)

    def _at(self, place: tuple[int, int]) -> None:
        if self.reader.segments:
            self.where = f"{self.listing.segments[self.reader.segments[place[0]][0]]}, byte {place[1]}"

    def _next(self) -> Native:
        try:
            return self.reader.next()
        except CheckpointError:  # a running server may have been writing the record
            self._at(self.reader.end[:2])
            self.listing = contents(self.disk)
            self._read()
            return self.reader.next()


def _parts(state: State, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of these keys of a state, as tensors by name and plain data by key."""
    tensors: dict[str, Any] = {}
    for key in names:
        value = state[key]
        if key == "direction":  # the progress of the exact resummation is not compared: it has no effect on the model
            value = {name: part for name, part in value.items() if name != "scrub"}
        tensors[f"{key} "] = trees.flatten(value, tensors, key)
    return tensors


def _equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        a, b = (tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) for tensor in (ours, theirs))
        return ours.dtype == theirs.dtype and torch.equal(a, b)
    return bool(ours == theirs)
