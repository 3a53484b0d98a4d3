"""What left the package, and what to use instead: names as they were written, commands, and words of
recipes. Kept for one release."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastagg.errors import MissingPart

_COMPARE = (
    "let fastagg.watch(server, times='times.csv') write how long your clients take, and compare rules on that: "
    '`fastagg compare RECIPES --set \'delay={name="measured",file="times.csv"}\'`; docs/choosing.md says which'
)
_EDGE = (
    "FLARE's own BuffModelManager adds up the updates of edge devices; a fastagg server that does the same is on "
    "docs/integrations/coming-from.md"
)
_PARTS = (
    "fastagg.parts(model, count) cuts a model above one host's memory by whole tensors, one Server each, here or as "
    "Ray's actors (fastagg.integrations.ray.Parts): docs/scaling.md"
)
_REFERENCE = "it was what the kernels are tested against, and lies in tests/support/reference of fastagg's repository"
_EXACT = "versions are kept while a client may answer them, and distances are exact (fastagg.ops.distances)"
_MEMORY = "server.memory() says what a server holds, and docs/scaling.md what ends first"
_ENGINE = (
    "clients train in threads of the run's process (--workers N, workers=N), and `fastagg compare -j N` (jobs=N) has N "
    "runs side by side"
)
_SIGN = "receipt.digest is a plain hash: sign and compare it with a library of your choice (docs/audit.md)"
_SUMS = "a server adds up its clients' rows by itself; torch does it for fastagg.ops.read_row(cache, slot) of each"
_STEPS = "sgd", "momentum", "adam", "amsgrad", "yogi", "adagrad"
_PAPERS = ", a function of reproduction/ in fastagg's repository; a copy beside the recipe is found"

REMOVED: dict[str, str] = {
    "fastagg advise": _COMPARE,
    "fastagg plan": _MEMORY,
    "fastagg tune": "a table decides by the processor's vendor and family, `fastagg info` shows it, and "
    "FASTAGG_TUNE=prefetch=512,stream_from=never sets values of your own",
    "fastagg.Plan": _MEMORY,
    "fastagg.integrations.nvflare.AsyncCollab": "AsyncController trains asynchronously, with FLARE's ordinary clients",
    "fastagg.integrations.nvflare.EdgeModelManager": _EDGE,
    "delay.file": 'a file has times: delay = { name = "measured", file = "times.csv" }',
    "fastagg.plan": _MEMORY,
    "fastagg.sim.advise": _COMPARE,
    'name = "cifar10"': 'write name = "cifar:cifar10"' + _PAPERS,
    'name = "cifar100"': 'write name = "cifar:cifar100"' + _PAPERS,
    'name = "femnist"': 'write name = "leaf:femnist"' + _PAPERS,
    'name = "femnist-cnn"': 'write name = "leaf:cnn"' + _PAPERS,
    'name = "glue"': 'write name = "texts:glue"' + _PAPERS,
    'name = "lstm"': 'write name = "shakespeare:NextCharacter"' + _PAPERS,
    'name = "mnist"': 'write name = "mnist:load"' + _PAPERS,
    'name = "newsgroups"': 'write name = "texts:newsgroups"' + _PAPERS,
    'name = "npz"': 'write name = "npz:load"' + _PAPERS,
    'name = "resnet18"': 'write name = "resnet:resnet18"' + _PAPERS,
    'name = "shakespeare"': 'write name = "shakespeare:load"' + _PAPERS,
    'name = "transformer"': 'write name = "transformer:classifier"' + _PAPERS,
    **{f"fastagg.{name}": _SIGN for name in ("sign", "verify", "prove", "Proof", "ProofError")},
    "fastagg.DurableServer": "a server of fastagg.open is a fastagg.Server that has a folder",
    "fastagg.OtherLife": "it is fastagg.StaleIncarnation now",
    "fastagg.NotDelivered": _PARTS,
    "fastagg.NotSharded": _PARTS,
    "fastagg.RankLost": _PARTS,
    "fastagg.Server.deliver": _PARTS,
    "fastagg.Server.follow": _PARTS,
    "fastagg.Server.load": "fastagg.load(path) makes a server from a file, and fastagg.open(path, make) from a folder",
    "fastagg.Server.origin": _PARTS,
    "fastagg.Server.rank": _PARTS,
    "fastagg.Server.slices": _PARTS,
    "fastagg.Server.snapshot": "server.parameters() is the same",
    "fastagg.Server.traffic": _PARTS,
    "fastagg.ShardedServer": _PARTS,
    "fastagg.SharedVector": "numpy.memmap is memory that all processes of a host see, and server.receive() takes it",
    "fastagg.Slice": _PARTS,
    "fastagg.reference": _REFERENCE,
    "fastagg.sharded": _PARTS,
    "fastagg.ClientCache.row": "fastagg.ops.read_row(cache, slot)",
    "fastagg.ops.GROUP": _PARTS,
    **{f"fastagg.ops.{name}_": f'fastagg.ops.step_(x, update, optimizer="{name}", lr=...)' for name in _STEPS},
    **{f"fastagg.ops.{name}": _SUMS for name in ("add_rows_", "recompute_sum_", "settle_rows_")},
    "fastagg.ops.crc32c": "zlib.crc32, or a package that has Castagnoli's",
    "fastagg.ops.fold": "fastagg.ops.accumulate_(acc, difference, weight), or server.receive_models()",
    "fastagg.ops.gather": "fastagg.ops.accumulate_(out, update, fresh=True)",
    "fastagg.ops.prepare": "call the op itself: its checks take 2 to 4 us; fastagg.Server does steps in a loop",
    "fastagg.ops.sketch": _EXACT,
    "--engine": _ENGINE,
    "delay.start": "it showed that clients of the version before do not explain FADAS' lead: docs/reproduction.md",
    "engine=": _ENGINE,
    "hash_payloads=": "the digest covers what a record says, and checksums what an update's numbers are; leave it out",
    "memory=": "Tiered asks the system for a client's cached update when that is sent a model, and the page cache "
    "decides what stays: leave it out, and leave memory free",
    "origin=": _PARTS,
    "sketch=": _EXACT,
}

# A setting that left -> the value that it must have had, in a folder or a checkpoint, for it to be opened.
SETTINGS: dict[str, object] = {"origin": 0, "sketch": None}


def remaining(settings: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Return what was stored of a server's or a rule's settings, without those that left.

    Args:
        known: the settings that it has now. One of these is nothing that left: it is a rule's of somebody else.
    """
    gone = {name: value for name, value in settings.items() if name in SETTINGS and name not in known}
    for name, value in gone.items():
        if value != SETTINGS[name]:
            raise MissingPart(f"it was made with {name}={value!r:.150}, which is gone: {REMOVED[name + '=']}")
    now = known if isinstance(known, Mapping) else {}  # has the rules' settings, too
    return {
        name: remaining(value, now[name]) if isinstance(value, dict) and isinstance(now.get(name), dict) else value
        for name, value in settings.items()
        if name not in gone
    }
