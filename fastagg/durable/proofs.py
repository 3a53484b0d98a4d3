"""Receipts that a server has signed, and proofs that a record is in a server's history. To verify them, nothing of a
server is needed: only hashes and, for signatures, the package ``cryptography``."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from typing import NamedTuple

from fastagg import _checks
from fastagg._extras import AUDIT, require
from fastagg._types import Foreign, Plain
from fastagg.durable.disk import Disk
from fastagg.durable.folder import contents, read_checkpoint, read_log
from fastagg.errors import CheckpointError, ConfigError, ProofError
from fastagg.server.dispatch import Client, Receipt

_SIGNED = "client", "task", "record", "version", "digest"


def sign(receipt: Receipt, key: Foreign) -> Plain:
    """Return what a client needs to show that its update was counted, as plain data for JSON.

    Args:
        receipt: a receipt of a server of :func:`fastagg.open`, whose ``durable`` is true.
        key: an ``Ed25519PrivateKey`` of the package ``cryptography``.

    Returns:
        The ``client``, the ``task`` that it answered (:attr:`fastagg.Dispatch.id`), the number of the ``record`` in the
        log, the model's ``version`` afterwards, the ``digest`` of the history up to it, and the ``signature`` of these.

    Raises:
        ConfigError: the receipt has no digest, or ``key`` is something else. MissingDependency: ``cryptography`` is not
            installed.

    Example::

        key = Ed25519PrivateKey.generate()  # cryptography.hazmat.primitives.asymmetric.ed25519
        note = fastagg.sign(server.receive("ann", update), key)  # goes back to ann
        fastagg.verify(note, key.public_key())  # raises ProofError if it is not the server's
    """
    require("fastagg.sign", "audit", AUDIT)
    if receipt.digest is None:
        raise ConfigError("sign: the receipt has no digest; sign it when receipt.durable is true")
    if not hasattr(key, "sign"):
        raise ConfigError(_checks.wrong("key", "an Ed25519PrivateKey of the package cryptography", key))
    said = {
        "client": receipt.client, "task": receipt.task, "record": receipt.sequence, "version": receipt.version,
        "digest": receipt.digest,
    }  # fmt: skip
    return {**said, "signature": key.sign(_message(said)).hex()}


def verify(note: Plain, key: Foreign) -> None:
    """Check a receipt that :func:`sign` has made.

    Args:
        key: the server's ``Ed25519PublicKey``.

    Raises:
        ProofError: the signature is not of this receipt and this key. MissingDependency: ``cryptography`` is not
            installed.

    Example::

        fastagg.verify(note, key.public_key())  # what fastagg.sign returned
    """
    require("fastagg.verify", "audit", AUDIT)
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(bytes.fromhex(note["signature"]), _message(note))
    except (InvalidSignature, LookupError, TypeError, ValueError) as error:
        name = note.get("client") if isinstance(note, dict) else None
        raise ProofError(f"the receipt of {name!r}: this key has not signed it") from error


class Proof(NamedTuple):
    """A proof that a record is in a history (RFC 9162, section 2.1.3).

    Attributes:
        record: the record's number in the log.
        base: the number of the record before the history's first.
        size: how many records the history has.
        bound: what of the record is proved: its head, what it says besides numbers, and their checksum.
        path: hashes of 32 bytes.

    Example:
        >>> from hashlib import sha256
        >>> bound = bytes(16) + (1).to_bytes(8, "little")
        >>> proof = fastagg.Proof(record=1, base=0, size=1, bound=bound, path=())  # of a history of one record
        >>> proof.check(sha256(bytes(1) + bound).hexdigest())
        >>> proof.nbytes
        48
    """

    record: int
    base: int
    size: int
    bound: bytes
    path: tuple[bytes, ...]

    @property
    def nbytes(self) -> int:
        """Its size: 24 bytes, those of ``bound``, and 32 for each hash."""
        return 24 + len(self.bound) + 32 * len(self.path)

    @property
    def client(self) -> Client:
        """The client that the record names.

        Raises:
            ProofError: it names none.
        """
        kind, body = self.bound[40:41], self.bound[48:]
        if kind not in _NAMES_A_CLIENT or len(body) < 17:
            raise ProofError(f"record {self.record}: it names no client")
        if body[0] == 1:
            return body[11 : 11 + int.from_bytes(body[1:3], "little")].decode()
        return int.from_bytes(body[1:9], "little", signed=True)

    def check(self, digest: str) -> None:
        """Check that the record is in the history with this digest.

        Raises:
            ProofError: it is not.
        """
        index, last = self.record - self.base - 1, self.size - 1
        found = sha256(b"\0" + self.bound).digest()
        good = 0 <= index <= last and self.bound[16:24] == self.record.to_bytes(8, "little")
        for other in self.path:
            good = good and last > 0
            if index & 1 or index == last:
                found = _joined(other, found)
                while not index & 1 and index > 0:
                    index, last = index >> 1, last >> 1
            else:
                found = _joined(found, other)
            index, last = index >> 1, last >> 1
        if not good or last != 0 or found.hex() != digest:
            raise ProofError(f"record {self.record}: the proof does not lead to this digest")


_NAMES_A_CLIENT = (b"\x02", b"\x03", b"\x04", b"\x06", b"\x09")  # kinds of csrc/log/operation.h


def prove(path: str | os.PathLike[str], record: int, *, until: int | None = None) -> Proof:
    """Return a proof that a record is in a server's history.

    Args:
        path: the folder of the server, which may be running, or a copy of it.
        record: its number (``receipt.sequence``). Its segment of the log must still be there.
        until: the history's last record: that of a receipt whose digest the verifier knows. None: the log's last.

    Raises:
        CheckpointError: the log does not have these records any more, or not yet; or its digest is not known.

    Example:
        >>> with fastagg.open("state/", lambda: fastagg.FedBuff(torch.zeros(2), buffer_size=1)) as server:
        ...     for name in ("ann", "bob"):
        ...         task = server.dispatch(name)
        ...         receipt = server.receive(name, torch.ones(2))
        >>> proof = fastagg.prove("state/", 2)  # record 1 is the task
        >>> proof.check(receipt.digest)  # raises ProofError if ann's update is not in bob's history
        >>> proof.client
        'ann'
    """
    disk = Disk(_checks.path("path", path))
    try:
        held = contents(disk)
        begin = [sequence for sequence in held.checkpoints if sequence < record]
        if not begin:
            raise CheckpointError(f"{disk.path}: record {record} is older than what is kept of the log")
        reader = read_log(disk, held, read_checkpoint(disk, begin[-1]))
        before, bound, leaves = reader.tree, b"", []
        while (one := None if reader.last == until else reader.next()) is not None:
            if one.sequence >= record:
                leaves.append(one.leaf)
                bound = bound or one.bound
            else:
                before = reader.tree
        if not leaves or (until is not None and reader.last != until) or not reader.tree.known:
            raise CheckpointError(
                f"{disk.path}: the log ends with record {reader.last}, or its digest is not known: nothing is "
                f"proved of record {record}" + ("" if until is None else f" in the history up to {until}")
            )
        tree = reader.tree
        siblings = _path(before.peaks, leaves, tree.count)
        return Proof(record, tree.base, tree.count, bound, tuple(reversed(siblings)))
    finally:
        disk.leave()


def _path(peaks: list[bytes], leaves: list[bytes], count: int) -> list[bytes]:
    """Return the siblings on the way from the root to the first of ``leaves``, the last of a history's ``count``. The
    complete subtrees before it are ``peaks``."""
    index, low, high, found, left = count - len(leaves), 0, count, [], iter(peaks)
    while high - low > 1:
        middle = low + (1 << (high - low - 1).bit_length() - 1)
        if index < middle:
            found.append(_root(leaves[middle - index : high - index]))
            high = middle
        else:
            found.append(next(left))
            low = middle
    return found


def _root(leaves: list[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    middle = 1 << (len(leaves) - 1).bit_length() - 1
    return _joined(_root(leaves[:middle]), _root(leaves[middle:]))


def _joined(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def _message(said: Plain) -> bytes:
    return b"fastagg receipt 1\n" + json.dumps([said[key] for key in _SIGNED], separators=(",", ":")).encode()
