"""Which servers there are: all settings, which values may stand together (docs/algorithms.md), and servers that are
drawn so that every pair of values that may stand together comes up."""

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Values = Mapping[str, Any]  # of settings, by name; those that do not apply are not there
Pair = tuple[tuple[str, Any], tuple[str, Any]]

ROUNDS = "Buffer", "Cohort", "Robust"  # that close_round() ends
ROWS = "AllClients", "ActiveSet", "Calibrated"
COMPARES = "Mixing", "CosineBuffer"
SECOND = "Adam", "AMSGrad", "Yogi", "Adagrad", "Lookahead"
EIGHT_BIT = "Momentum", "Nesterov", *SECOND
ADAPTIVE = ("scaled", "reciprocal", "threshold", "lipschitz", "drop")
WEIGHS = "Hinge", "Polynomial", "CosineGate", "Cutoff", "Euclidean", "HalfLife", "Rare"
RULES = "median", "trimmed", "mean_around_median", "krum", "multi_krum", "geometric_median", "centered_clip"
HALVES = "halves in fp16", "halves in bf16"
SEVERAL = {"routes": 3, "events": 4}  # settings of which a server has several values at once
DIVISORS = {
    "Buffer": ("buffer", "weights", "number"),
    "Cohort": ("buffer", "weights", "number"),
    "Mixing": ("buffer", "number"),
}
FORMATS = "int8", "int4", "int8-tensor", "sign", "bf16", "topk"


def _sizes(a: Values) -> tuple[Any, ...]:
    if a["direction"] == "Robust":
        return 5, None
    return {
        "Buffer": (1, 2, 4, None), "Cohort": (1, 2, 4, None), "CosineBuffer": (1, 3), "Calibrated": (1, 3),
        "Trail": (2, 3),
    }.get(a["direction"], ())  # fmt: skip


def _optimizers(a: Values) -> tuple[str, ...]:
    own = () if a["direction"] in (*ROWS, "Differences", "Mixing", "Aligned") else ("Lion",)
    plain = () if a["direction"] == "Aligned" else ("SGD", "Adagrad")
    return (*plain, "Momentum", "Nesterov", "DelayedNesterov", "Adam", "AMSGrad", "Yogi", "Lookahead", *own)


def _policies(a: Values) -> tuple[str, ...]:
    weighs = () if a["direction"] == "Differences" else WEIGHS
    ahead = a.get("look_ahead", False)
    return tuple(p for p in ("Constant", *ADAPTIVE, *weighs) if not (ahead and p == "Euclidean"))


def is_own(a: Values) -> bool:
    return a["optimizer"] == "Lion" or a["direction"] == "Trail" or a["staleness"] == "Rare"


def _adds_up(a: Values) -> bool:
    return a["direction"] in ("Buffer", "Cohort") and not a.get("deterministic") and a["staleness"] != "Euclidean"


def compares(a: Values) -> bool:
    return a["direction"] in COMPARES or a["staleness"] == "Euclidean"


def routes_of(a: Values) -> tuple[str, ...]:
    models = ("model", "models") if a["kind"] == "delta" else ()
    leaf = ("leaf",) if _adds_up(a) else ()
    http = ("http",) if a["home"] != "memory" and a["form"] == "names" and a["clients"] != "any" else ()
    return (
        "flat",
        "form",
        *HALVES,
        *FORMATS,
        "chunks",
        "encoded chunks",
        "many",
        "difference",
        "differences",
        *models,
        *leaf,
        *http,
    )


def _events(a: Values) -> tuple[str, ...]:
    rounds = ("close",) if a["direction"] in ROUNDS else ()
    folder = ("save", "load", "copy") if a["home"] == "memory" else ("save", "copy", "checkpoint", "reopen", "crash")
    return ("forget", "expire", "rate", "bad", "again", "hand on", "time", *rounds, *folder)


def _one_of(*values: Any, where: Callable[[Values], Any] = lambda a: True) -> Callable[[Values], tuple[Any, ...]]:
    return lambda a: values if where(a) else ()


def _is(name: str, *values: Any) -> Callable[[Values], bool]:
    return lambda a: a.get(name) in values


SETTINGS: dict[str, Callable[[Values], tuple[Any, ...]]] = {
    "direction": _one_of(
        "Single", "Aligned", "Mixing", "Buffer", "Cohort", "CosineBuffer", "AllClients", "ActiveSet", "Differences",
        "Calibrated", "Robust", "Trail",
    ),
    "kind": lambda a: ("delta",) if a["direction"] == "Mixing" else ("delta", "gradient"),
    "rule": _one_of(*RULES, where=_is("direction", "Robust")),
    "synchronous": _one_of(False, True, where=_is("direction", "Robust")),
    "size": _sizes,
    "grace": _one_of(False, True, where=lambda a: a["direction"] in ROUNDS and a["size"] != 1),
    "overflow": _one_of("take", "close", where=_is("direction", "Buffer")),
    "normalize": lambda a: DIVISORS.get(a["direction"], ()),
    "warmup": _one_of("full", "partial", where=_is("direction", "AllClients", "ActiveSet", "Differences")),
    "cache": _one_of("fp32", "bf16", "int8", "int4", where=_is("direction", *ROWS)),
    "mode": _one_of("incremental", "direct", where=_is("direction", "AllClients")),
    "freshness": _one_of("dispatch", "gradient", where=_is("direction", "ActiveSet")),
    "repeat": _one_of("start", "latest", where=_is("direction", "Calibrated")),
    "optimizer": _optimizers,
    "moments": _one_of("fp32", "8bit", where=lambda a: a["optimizer"] in EIGHT_BIT and a["direction"] != "Aligned"),
    "decay": _one_of("none", "coupled", "decoupled", where=lambda a: a["optimizer"] != "Lion"),
    "corrected": _one_of(False, True, where=lambda a: a["optimizer"] in SECOND and a["optimizer"] != "Adagrad"),
    "eps_root": _one_of(0.0, 1e-4, where=_is("optimizer", *SECOND)),
    "initial": _one_of(0.0, 1e-2, where=_is("optimizer", *SECOND)),
    "look_ahead": _one_of(False, True, where=lambda a: a["optimizer"] == "Nesterov" and a["moments" if "moments" in a
                          else "optimizer"] in ("fp32", "Nesterov") and a["direction"] not in COMPARES),
    "staleness": _policies,
    "clip_norm": _one_of(None, 2.0, where=lambda a: a["direction"] != "Differences"),
    "weighting": lambda a: ("uniform", *(() if a["direction"] in ("Differences", "Robust") else ("samples", "tokens"))),
    "max_samples": _one_of(None, 3.0, where=_is("weighting", "samples")),
    "deterministic": _one_of(False, True, where=lambda a: a["direction"] == "Cohort" or a.get("synchronous")),
    "model_dtype": _one_of(None, "bf16", where=lambda a: not is_own(a) and not compares(a)),
    "form": _one_of("flat", "list", "names"),
    "buffers": _one_of("mean", "weighted", "latest", "keep", where=_is("form", "names")),
    "clients": lambda a: ("numbers",) if a["direction"] in (*ROWS, "Differences") else ("numbers", "any", "text"),
    "max_open": _one_of(None, 2),
    "answers": _one_of("rule", None, 2),
    "lease": _one_of(None, 1e6),
    "max_delay": _one_of(None, 3, where=lambda a: a["direction"] != "ActiveSet"),
    "home": _one_of("memory", "arrival", "step", "none"),
    "download": _one_of(None, "bf16", "int8", where=lambda a: not compares(a)),
    "elements": _one_of("few", "many"),
    "routes": routes_of,
    "events": _events,
}  # fmt: skip


# Robust has most values of its own. What is rounded, or large, leaves the float64 model little to say, or is slow.
OFTEN = {
    ("direction", "Robust"): 6.0,
    ("elements", "many"): 0.2,
    ("moments", "8bit"): 0.2,
    ("model_dtype", "bf16"): 0.2,
}
Item = tuple[str, Any]  # a setting's name and one of its values
Seen = defaultdict[Item, set[Item]]  # which other items an item has stood beside


def complete(draw: random.Random, seen: Seen) -> dict[str, Any]:
    """Values for all settings that apply. Each is one that makes most new pairs with those before it."""
    values: dict[str, Any] = {}
    held = set[Item]()
    for name, among in SETTINGS.items():
        if not (choice := list(among(values))):
            continue
        draw.shuffle(choice)
        new = [len(held - seen[name, value]) for value in choice]
        if name in SEVERAL:
            order = sorted(range(len(choice)), key=lambda k: -new[k])
            values[name] = tuple(choice[k] for k in order[: SEVERAL[name]])
            continue
        most = max(new) if draw.random() < 0.9 else -1
        weights = [
            (most in (-1, count)) * OFTEN.get((name, value), 1.0) for count, value in zip(new, choice, strict=True)
        ]
        values[name] = draw.choices(choice, weights)[0]
        held.add((name, values[name]))
    return values


def _each(name: str, value: Any) -> list[Item]:
    return [(name, one) for one in value] if name in SEVERAL else [(name, value)]


def pairs_of(values: Values) -> Iterator[Pair]:
    """Pairs of values of different settings, in the order of the settings."""
    for (name, value), (other, its) in itertools.combinations(values.items(), 2):
        yield from itertools.product(_each(name, value), _each(other, its))


def servers(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """So many servers. Each is, of some that are drawn, the one with the most pairs that were not there before."""
    draw, seen = random.Random(seed), Seen(set)
    for number in range(count):
        drawn = [complete(draw, seen) for _ in range(8 if number < 240 else 30 if number < 300 else 2)]
        best = max(drawn, key=lambda values: sum(other not in seen[one] for one, other in pairs_of(values)))
        for one, other in pairs_of(best):
            seen[one].add(other), seen[other].add(one)
        yield best
