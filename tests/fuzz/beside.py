"""A server beside its float64 model: the same events, and after each of them the same version, model and receipt. And
beside a plain server in memory, which gets every answer by `receive`, one at a time: that one has the same bits.

What a server rounds at random (rows, moments in 8 bits, a model in bf16) is read back, compared with what was to be
rounded, and goes on in the model.
"""

import copy
import math
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from support import inside
from support.bits import digest
from support.book import Refused, Task, Vector
from support.forms import FORMS, TYPES, overwrite
from support.lossy import LossyDisk
from support.model import Buffers, Model, Receipt
from support.models import same
from support.reference import moments

import fastagg
from fastagg.durable.opening import open_on
from fuzz.drawn import EIGHT_BIT, FORMATS, HALVES, ROWS, Values, compares, is_own, routes_of

native, ISA = fastagg._build.native, fastagg.build_info()["isa"]
ISAS = [name for name, is_here in fastagg.build_info()["cpu_isas"].items() if is_here]
LEASE, GRACE, CLIENTS = 1e6, 1e5, 6
SIZES = {
    "few": (1, 2, 3, 7, 17, 18, 18, 41, 255, 257),
    "many": (1025, 4097, 8200, 70_003),
}  # around the widths of loops
IDS: dict[str, list[Any]] = {
    "numbers": list(range(CLIENTS)), "any": [7, -1, 2**64 - 1, 2**63 - 1, -(2**63), "", "ann", "1", "é" * 256, "\0"],
    "text": ["ann", "bob", "c/ü", "d" * 200, "e e", "f%"],
}  # fmt: skip
ROUNDING = {"bf16": 2.0**-7, "int8": 1.02 / 127, "int4": 1.02 / 7}  # relative to the largest of a block
STATISTICS = "bn.running_mean", "bn.num_batches_tracked"


class Wrong(AssertionError):
    """The server is not what its model is."""


class Ended(Exception):
    """The rule jumps here, and float64 may have fallen on the other side."""


class Sent(NamedTuple):
    """A task, as the server's, the model's and the plain server's."""

    task: fastagg.Dispatch
    model: Task
    plain: fastagg.Dispatch


def parts_of(
    values: Values, draw: random.Random
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The direction, the optimizer and the policy as plain data, and the server's settings."""
    get, name, rule = values.get, values["direction"], values.get("rule")
    direction: dict[str, Any] = {"name": name, "kind": values["kind"]}
    direction |= {key: values[key] for key in ("size", "overflow", "warmup", "cache", "mode", "freshness", "repeat",
                                               "synchronous", "rule") if key in values}  # fmt: skip
    if name in (*ROWS, "Differences"):
        direction["num_clients"] = CLIENTS
    if name == "ActiveSet":
        direction["max_delay"] = draw.choice((0, 1, 3))
    if get("grace"):
        direction |= {"at_least": 3 if name == "Robust" else 1 if values["size"] == 2 else 2, "grace": GRACE}
    if get("normalize") == "number":
        direction["normalize"] = 9.0
    elif name in ("Buffer", "Cohort"):
        direction["normalize"] = values["normalize"]
    if name == "Aligned":
        direction |= {"rho": 0.5, "c_ok": 0.2, "k_s": 0.5, "k_d": 1.0, "kappa": 3.0, "beta_max": 0.5, "eps": 1e-8}
    direction |= {"trimmed": {"trim": 0.3}, "mean_around_median": {"f": 1}, "multi_krum": {"f": 0, "keep": 2},
                  "geometric_median": {"iterations": 3, "smoothing": 1e-6},
                  "centered_clip": {"iterations": 3, "radius": 1.5}}.get(rule, {})  # fmt: skip
    optimizer: dict[str, Any] = {"name": values["optimizer"], "lr": draw.choice((0.1, 0.3, 0.8, 0.8, 0.0))}
    optimizer |= {
        "Momentum": {"beta": 0.9}, "Nesterov": {"momentum": 0.7, "dampening": draw.choice((0.0, 0.5))},
        "DelayedNesterov": {"momentum": 0.7, "period": 3}, "Lion": {"beta1": 0.8, "beta2": 0.9},
        "Adagrad": {"beta": draw.choice((0.0, 0.5)), "eps": 1e-3},
    }.get(values["optimizer"], {"betas": (draw.choice((0.0, 0.9)), 0.99), "eps": draw.choice((1e-8, 1e-2))}
          if "eps_root" in values else {})  # fmt: skip
    optimizer |= {key: values[key] for key in ("moments", "eps_root", "initial", "look_ahead") if key in values}
    optimizer |= {"bias_correction": True} if get("corrected") else {}
    if get("decay", "none") != "none":
        optimizer |= {"weight_decay": 0.125, "decoupled_weight_decay": values["decay"] == "decoupled"}
    policy = values["staleness"]
    staleness = {
        "Hinge": {"a": 0.7, "b": draw.choice((0.0, 1.0))}, "Polynomial": {"a": 0.5},
        "CosineGate": {"alpha": 0.1, "cutoff": 3.0},
        "Cutoff": {"delay": 2}, "HalfLife": {"versions": 2.0, "most": 1},
        "Euclidean": {"lam": 0.8, "eps": 1.0, "gamma_bar": 1.3, "kappa": 1.7, "local_steps": 5,
                      "gamma_max": draw.choice((None, 0.8)), "max_local_steps": draw.choice((None, 6))},
    }.get(policy, {"rule": policy, "threshold": draw.choice((0, 1))} if policy.islower() else {})  # fmt: skip
    staleness |= {"lipschitz": 1.7} if policy == "lipschitz" else {}
    settings: dict[str, Any] = {
        key: values[key]
        for key in (
            "clip_norm",
            "weighting",
            "max_samples",
            "deterministic",
            "model_dtype",
            "buffers",
            "lease",
            "max_delay",
        )
        if key in values
    }
    settings |= {"max_open_per_client": values["max_open"], "answers_per_step": values["answers"]}
    if values["clients"] == "numbers":
        settings["num_clients"] = CLIENTS
    return direction, optimizer, {"name": "DelayAdaptive" if policy.islower() else policy, **staleness}, settings


def server_of(params: Any, direction: Any, optimizer: Any, staleness: Any, settings: dict[str, Any]) -> fastagg.Server:
    return fastagg.Server(params, direction, optimizer, staleness, seed=3, **settings)


class Made(NamedTuple):
    """An answer, and what the model is to receive."""

    update: Any
    kind: Any
    samples: Any
    updates: list[tuple[Vector, Any]]
    statistics: Buffers = None
    is_sum: bool = False
    is_measured: bool = True
    clients: tuple[Any, ...] = ()  # that a sum names
    error: str = ""


class Beside:
    """One server, its model, and what happens to both."""

    def __init__(self, values: Values, seed: object) -> None:
        self.values, self.draw = values, random.Random(f"{seed}")
        self.rng = np.random.default_rng(self.draw.getrandbits(63))
        self.apart = random.Random(f"{seed} apart")  # draws what the model need not know
        self.size = self.draw.choice(SIZES[values["elements"]])
        last = self.size // 3
        self.shapes: dict[str, Any] = {"a": (self.size - last,), **({"b": (last, 1)} if last else {})}
        self.ids = self.draw.sample(IDS[values["clients"]], CLIENTS)
        direction, optimizer, staleness, settings = self.described = parts_of(values, self.draw)
        x = torch.from_numpy(self.numbers())
        self.params = self.formed(x, (np.zeros(3), 2))
        self.make = lambda: server_of(self.params, direction, optimizer, staleness, settings)
        self.disk: LossyDisk | None = None
        self.server, self.plain = self.opened(), self.make()
        statistics = (np.zeros(3), 2) if values["form"] == "names" else None
        sizes = [self.size] if values["form"] == "flat" else [math.prod(shape) for shape in self.shapes.values()]
        counts = direction["name"] in ("Cohort", "Robust") or "at_least" in direction
        per_step = {"rule": 1 if counts else None}.get(values["answers"], values["answers"])
        self.model = Model(
            self.server.flat.double().numpy(), direction, optimizer, staleness, sizes=sizes, statistics=statistics,
            **{**settings, "answers_per_step": per_step},
        )  # fmt: skip
        self.quantised = values.get("cache", "fp32") != "fp32"
        self.coded = values.get("moments") == "8bit" and values["optimizer"] in EIGHT_BIT
        self.rounds_model = values.get("model_dtype") is not None
        self.sent: list[Sent] = []
        self.left = 1e-6 if values["direction"] in ROWS else 1e-30  # of a sum when all its rows have left it again
        self.kept_store()
        self.adopt_moments(self.model.optimizer.m, self.model.optimizer.v, self.model.optimizer.vhat)
        self.seen = 0  # the version of the last comparison
        self.did: list[str] = []
        each = ("chunks", "encoded chunks", "many", "models", "differences", "http")
        self.all_routes = [route for route in routes_of(values) if route not in each]
        self.app: tuple[fastagg.Server, Any] | None = None
        self.held: list[tuple[Any, str]] = []  # what was handed out, and its digest then

    # -- what is sent

    def numbers(self) -> Any:
        scale = self.draw.choice((0.01, 0.3, 1.0, 1.0))
        return (self.rng.standard_normal(self.size) * scale / math.sqrt(self.size / 18)).astype(np.float32)

    def formed(self, flat: torch.Tensor, statistics: Buffers = None) -> Any:
        """A flat vector in the form of the model."""
        if self.values["form"] == "flat":
            return flat
        parts = flat.split([math.prod(shape) for shape in self.shapes.values()])
        named: dict[str, Any] = {
            name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }
        if self.values["form"] == "list":
            return [part.numpy() for part in named.values()]
        if statistics is not None:
            named |= {
                STATISTICS[0]: torch.from_numpy(statistics[0]).float(),
                STATISTICS[1]: torch.tensor(statistics[1]),
            }
        return named

    def encoded(self, flat: torch.Tensor, name: str) -> fastagg.Encoded:
        how: Any = fastagg.TopK(0.4, self.draw.choice(("fp32", "bf16", "int8"))) if name == "topk" else name
        made = fastagg.encode(self.formed(flat), how, seed=self.draw.getrandbits(20))
        most = float(flat.abs().max())
        if name in ROUNDING and not (made.decode() - flat).abs().max() <= ROUNDING[name] * most + 1e-30:
            raise Wrong(f"encode: {name}")
        return made

    def update(self, route: str) -> tuple[Any, Vector, Buffers]:
        """An update as it is sent on a route, and what it is."""
        flat = torch.from_numpy(self.numbers() * (self.draw.random() > 0.03))
        if route == "form" and self.values["form"] == "names" and self.draw.random() < 0.8:
            told = self.rng.standard_normal(3).astype(np.float32).astype(float), self.draw.randrange(9)
            return self.any_form(self.formed(flat, told), flat, told)
        if route in HALVES:
            flat = flat.half() if route == HALVES[0] else flat.bfloat16()
        if route in FORMATS:
            made = self.encoded(flat, route)
            return made, made.decode().double().numpy(), None
        return self.formed(flat) if route == "form" else flat, flat.double().numpy(), None

    def any_form(self, arrays: Any, flat: torch.Tensor, told: Buffers) -> tuple[Any, Vector, Buffers]:
        name = self.draw.choice(sorted(FORMS))
        make, statistics = FORMS[name]
        u = flat.to(TYPES.get(name, torch.float32))
        return make(arrays), u.double().numpy(), told if statistics else None

    def samples(self) -> Any:
        number = self.draw.choice((0, 1, 2.5, 7, 7))
        if self.values["weighting"] == "tokens":
            return self.draw.choice(((0, 1), (2, 1), (3, 2), 2.5))
        return number if self.values["weighting"] == "samples" else self.draw.choice((None, number))

    # -- comparison

    def kept_store(self) -> None:
        """Read rows back, if they are rounded."""

        def store(client: int, row: Vector) -> Vector:
            state = inside.direction(self.server)
            slot = client
            if self.values["direction"] == "Calibrated":
                native = state.native.state()
                slots = {**dict(native["slots"]), **{one: at for one, at, _ in native["fresh"]}}
                if client not in slots:
                    raise Wrong(f"client {client} has no row")
                slot = slots[client]
            kept = inside.row_in(state.cache, slot).double().numpy()
            most = np.abs(row) if self.values["cache"] == "bf16" else np.abs(row).max()
            if not (
                np.abs(kept - row) <= ROUNDING[self.values["cache"]] * most + 1e-7 * np.abs(row).max() + 1e-30
            ).all():
                raise Wrong(f"the row of client {client} is {kept}, and the model's {row}")
            return kept

        if self.quantised:
            self.model.store = store

    def adopt_moments(self, *of_model: Vector) -> None:
        """Read moments back, if they are rounded."""
        if not self.coded:
            return
        found, held = self.server.state_dict(copy=False)["moments"], self.model.optimizer
        for name, wanted in zip(("m", "v", "vhat"), of_model, strict=True):
            if name not in found:
                continue
            unit = found["units"][0 if name == "m" else -1]
            kept = moments.decode(found[name], unit, name == "m")[: self.size].double().numpy()
            least = np.abs(wanted).max() * (2.0**-16 if name == "m" else 2.0**-32) + self.left
            if not (np.abs(kept - wanted) <= 0.13 * np.abs(wanted) + least).all():
                raise Wrong(f"{name} is {kept}, and the model's {wanted}")
            setattr(held, name, kept)

    def compare(self, before: Vector) -> None:
        """Version and model are the same, up to fp32. The model goes on with the server's numbers."""
        server, model = self.server, self.model
        if server.version != model.version or server.steps != model.optimizer.steps:
            raise Wrong(
                f"version {server.version}, step {server.steps}; the model's {model.version}, {model.optimizer.steps}"
            )
        found = server.flat.double().numpy()
        self.near("the model", found, model.x, before)
        if server.version != self.seen:
            self.seen, model.x = server.version, found
            model.history[-1] = found
            self.adopt_moments(model.optimizer.m, model.optimizer.v, model.optimizer.vhat)
        if not (self.values["lease"] or self.values.get("max_delay") is not None):  # else tasks end when somebody looks
            self.compare_tasks()
        if server.control is not None:
            self.near("the control variate", server.control.double().numpy(), model.control, 0 * before)
        if self.values["form"] == "names":
            state = server.parameters()
            if not torch.equal(torch.cat([state[name].reshape(-1) for name in self.shapes]), server.flat.float()):
                raise Wrong("parameters() is not the version that flat is")
            values, counter = model.statistics or (np.zeros(3), 0)
            self.near("running statistics", state[STATISTICS[0]].double().numpy(), values, values + 1)
            if int(state[STATISTICS[1]]) != counter:
                raise Wrong(f"the counter is {state[STATISTICS[1]]}, and the model's {counter}")

    def compare_tasks(self) -> None:
        """The server knows the same clients and tasks, and keeps the versions that its rule needs for them."""
        ledger, model = inside.engine(self.server), self.model
        owed = {client: sorted(task.version for task in model.owed(client)) for client in model.last}
        if ledger.known != len(model.last) or {client: sorted(ledger.owed(client)) for client in owed} != owed:
            raise Wrong(f"it knows {ledger.known} clients; the model's owe {owed}")
        kept = {task.version for task in model.tasks} if compares(self.values) else set()
        if set(ledger.tasks()["versions"]) != kept:
            raise Wrong(f"it keeps {set(ledger.tasks()['versions'])}, and needs {kept}")

    def near(self, what: str, found: Vector, wanted: Vector, before: Vector) -> None:
        """Nine of ten elements agree to 5 digits of the step, all to 2: a quotient of sums that cancel has no more, and
        a sign, or which value is farther from a median, may be a question of the last digit."""
        moved, size = np.abs(wanted - before).max(initial=0.0), np.abs(wanted)
        digits = 2.0**-7 if self.rounds_model and what == "the model" else 1e-6
        apart = np.abs(found - wanted) - digits * size
        jumps = self.values.get("rule") == "mean_around_median" or self.values["optimizer"] == "Lion"
        if not ((apart <= (1 if jumps else 5e-3) * moved + 1e-9).all() and np.mean(apart > 2e-5 * moved + 1e-9) <= 0.1):
            told = f"apart {apart.max()} at {apart.argmax()}, moved {moved}"
            raise Wrong(f"{what} is {found}, and the model's {wanted}, before {before}: {told}")

    def same_receipt(self, found: fastagg.Receipt, wanted: Receipt, measured: bool = True) -> None:
        told = Receipt(found.applied, found.version, found.delay, found.step_size, found.update_norm, found.weight)
        if not measured and math.isnan(told.norm):
            told = told._replace(norm=wanted.norm)
        agrees = told[:3] == wanted[:3] and (told.step_size is None) == (wanted.step_size is None)
        pairs = (told.step_size or 0.0, wanted.step_size or 0.0), (told.weight, wanted.weight), (told.norm, wanted.norm)
        if not agrees or any(not abs(one - other) <= 2e-6 * (abs(other) + 1) for one, other in pairs):
            raise Wrong(f"the receipt is {told}, and the model's {wanted}")

    def both(
        self, call: Callable[[], Any], on_model: Callable[[], Any], on_plain: Callable[[], Any], careful: bool = False
    ) -> tuple[Any, Any]:
        """Call the server, the plain one, then the model. They refuse the same, and a refusal changes nothing."""
        careful, x = careful or self.draw.random() < 0.2, self.model.x
        before = self.server.state_dict() if careful else None
        try:
            with self.other_defaults():
                found, error = call(), ""
        except fastagg.FastaggError as refused:
            found, error = None, type(refused).__name__
            if before is not None and not same(before, self.server.state_dict()):
                raise Wrong(f"refused ({refused}), and something has changed") from refused
        self.is_plain(found, error, on_plain)
        try:
            wanted, refusal = on_model(), ""
        except Refused as refused:
            wanted, refusal = None, str(refused)
        lost = {"UnknownClient", "UnknownVersion"}  # a client without tasks may be forgotten, with a lease
        limited = self.values["lease"] or self.values.get("max_delay") is not None
        if error != refusal and not (limited and {error, refusal} <= lost):
            raise Wrong(f"the server says {error or found!r}, and the model {refusal or wanted!r}")
        if self.model.fragile and not refusal:
            raise Ended
        self.compare(x)
        return found, wanted

    def is_plain(self, found: Any, error: str, call: Callable[[], Any]) -> None:
        """The plain server has the same outcome and the same bits."""
        try:
            plain, refusal = call(), ""
        except fastagg.FastaggError as refused:
            plain, refusal = None, type(refused).__name__
        for one, other in zip(found, plain, strict=True) if isinstance(found, list) else [(found, plain)]:
            told = [
                repr((r.applied, r.version, r.delay, r.step_size, r.weight)) if isinstance(r, fastagg.Receipt)
                else type(r).__name__ for r in (one, other)
            ]  # fmt: skip
            if told[0] != told[1]:
                raise Wrong(f"the outcome is {told[0]}, and without routes and restarts {told[1]}")
        if error != refusal or self.server.version != self.plain.version:
            raise Wrong(f"{error or found!r}, and without routes and restarts {refusal or plain!r}")
        if not torch.equal(self.server.flat, self.plain.flat):
            raise Wrong(f"{self.server.flat}, and without routes and restarts {self.plain.flat}")

    @contextmanager
    def other_defaults(self) -> Iterator[None]:
        """Another process's, if no Python of a user's own relies on them; and another processor's."""
        kept, threads, tuning = torch.get_default_dtype(), fastagg.get_num_threads(), native.tuning()
        try:
            if self.draw.random() < 0.3 and not is_own(self.values):
                torch.set_default_dtype(self.draw.choice([torch.float64, torch.bfloat16]))
                fastagg.set_num_threads(self.draw.choice([1, 2, 3]))
            if self.draw.random() < 0.3:
                fastagg.set_isa(self.draw.choice(ISAS))
                # never past the cache, always, and added in place
                native.set_tuning({"cache": self.draw.choice((0, 1, 9 * self.server.layout.size))})
            yield
        finally:
            torch.set_default_dtype(kept)
            fastagg.set_num_threads(threads)
            fastagg.set_isa(ISA)
            native.set_tuning(tuning)

    def hold(self, *values: Any) -> None:
        """What is handed out never changes."""
        self.held += [(value, digest(value)) for value in values]

    # -- events

    def everywhere(self, act: Callable[[Any], Any], careful: bool = False) -> tuple[Any, Any]:
        """The same call of both servers and the model."""
        return self.both(lambda: act(self.server), lambda: act(self.model), lambda: act(self.plain), careful)

    def due(self) -> None:
        """A round that is due ends now: what is refused later then changes nothing."""
        self.everywhere(lambda server: server.close_round(if_due=True))

    def dispatch(self, client: Any = None) -> Sent | None:
        self.due()
        if client is None:
            welcome = [one for one in self.ids if self.model.may_take_part(one)]
            client = self.draw.choice(welcome if welcome and self.draw.random() < 0.9 else self.ids)
        if self.values["lease"] or self.values.get("max_delay") is not None:
            self.everywhere(lambda server: server.expire())
        how: Any = {"format": self.draw.choice((None, self.values.get("download")))}
        if "http" in self.values["routes"] and self.model.has_room(client) and self.draw.random() < 0.5:
            how = {}
            self.http("GET", f"/task/{client}?part=0")
        plain: list[fastagg.Dispatch] = []
        task, model = self.both(
            lambda: self.server.dispatch(client, **how), lambda: self.model.dispatch(client),
            lambda: plain.append(self.plain.dispatch(client, **how)) or plain[0],  # type: ignore[func-returns-value]
        )  # fmt: skip
        if task is None:
            return None
        flat, most = task.flat.double().numpy(), np.abs(model.sent).max()
        rounds = ROUNDING.get(how.get("format"), 0.0) + (2.0**-6 if self.rounds_model else 0.0)
        if task.version != model.version or not np.abs(flat - model.sent).max() <= (rounds + 1e-6) * most:
            raise Wrong(f"sent {task.version}, {flat}; the model's {model.version}, {model.sent}")
        model.sent = flat
        if self.apart.random() < 0.5:
            task = copy.deepcopy(task)  # so that nobody holds the version, and the next step may be in place
        if task.local_steps != model.local_steps:
            raise Wrong(f"{task.local_steps} local steps, and the model's {model.local_steps}")
        self.sent = [*self.sent[-7:], Sent(task, model, plain[0])]
        if self.draw.random() < 0.1:
            self.hold(task.params, self.server.flat, self.server.parameters())
        return self.sent[-1]

    def http(self, method: str, path: str, **more: Any) -> Any:
        from starlette.testclient import TestClient

        from fastagg.serve.service import Service

        if self.app is None or self.app[0] is not self.server:
            service = Service([self.server], fastagg.parts(self.params, 1), Path(tempfile.gettempdir()))
            self.app = self.server, TestClient(service.app())
        return self.app[1].request(method, path, **more)

    def chosen(self) -> Sent | None:
        """A task to answer: mostly an open one, of this version if the rule wants that."""
        open_ones = [one for one in self.sent if not one.model.end and one.task.version == one.model.version]
        fresh = self.values["direction"] == "Cohort" or self.values.get("synchronous")
        if fresh and self.draw.random() < 0.9:
            open_ones = [one for one in open_ones if one.model.version == self.model.version]
        if not open_ones or self.draw.random() < 0.35:
            return self.dispatch()
        return self.draw.choice(open_ones)

    def named(self, one: Sent) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """How an answer says which task it is of: to the server, the model and the plain server."""
        how = self.draw.randrange(3)
        if how == 0:
            return {"task": one.task.id}, {"task": one.model}, {"task": one.plain.id}
        version = {} if how == 1 else {"version": one.task.version}
        return version, version, version

    def made(self, one: Sent, route: str) -> Made:
        """An answer to a task, and what the model is to receive."""
        if route == "leaf" and (self.coded or self.rounds_model) and self.values.get("overflow") == "close":
            route = "flat"  # it may be two steps
        if route == "leaf":
            names = ("clip_norm", "weighting", "max_samples")
            leaf = fastagg.Leaf(self.params, **{name: self.values.get(name) for name in names})
            updates: list[tuple[Vector, Any]] = []
            names = self.draw.sample(self.ids, 3) if self.draw.random() < 0.5 else [None] * 3
            for who in names[: self.draw.randint(1, 3)]:
                sent, u, _ = self.update(self.draw.choice(("flat", "form", HALVES[0], "int8")))
                samples = self.samples()
                leaf.fold(sent, samples, client=who)
                updates.append((u, samples))
            total = leaf.take()
            return Made(total, "partial", None, updates, is_sum=True, clients=total.clients)
        samples = self.samples()
        if route == "bad":
            sent, u, _ = self.update("flat")
            sent[-1] = math.nan
            return Made(sent, None, samples, [(u, samples)], error="NonFiniteUpdate")
        if route == "model":
            update, u, told = self.update("form")
            base = one.task.flat.float()
            trained = base + torch.from_numpy(u).float()
            u = trained.double().numpy() - base.double().numpy()
            return Made(self.formed(trained, told), "model", samples, [(u, samples)], told, is_measured=False)
        update, u, told = self.update("form" if route == "difference" else route)
        kind: Any = self.server.update_kind if route == "difference" else None
        return Made(update, kind, samples, [(u, samples)], told, is_measured=route != "difference")

    def answer(self) -> None:
        if (one := self.chosen()) is None:
            return
        self.due()
        route = self.draw.choice((*self.values["routes"], "flat"))
        if route == "flat" and self.values["form"] == "names" and self.draw.random() < 0.6:
            route = "form"  # which may come with running statistics
        if route == "http":
            return self.posted(one)
        if route in ("many", "models", "differences"):
            return self.many(route)
        made = self.made(
            one,
            {"chunks": self.draw.choice(("flat", HALVES[0])), "encoded chunks": self.draw.choice(FORMATS)}.get(
                route, route
            ),
        )
        client, (named, by, plainly), server = one.task.client, self.named(one), self.server
        self.did.append(
            f"answer by {route}, client {client!r}, version {one.task.version}, samples {made.samples}, {named}"
        )
        more: dict[str, Any] = {}
        if self.values["direction"] == "CosineBuffer" and route == "flat" and self.draw.random() < 0.7:
            more["control"] = torch.from_numpy(self.numbers())
        control = more["control"].double().numpy() if more else None
        still = self.apart.random() < 0.5

        def call() -> fastagg.Receipt:
            if route.endswith("chunks"):
                return self.in_chunks(client, made.update, made.samples, named)
            if made.is_sum:
                return server.receive_partial(client, made.update, **named)
            if route in ("model", "difference"):
                return server.receive_model(one.task, made.update, made.samples, difference=route == "difference")
            return server.receive(client, made.update, num_samples=made.samples, still=still, **named, **more)

        if route in ("model", "difference"):
            by, plainly = {"task": one.model}, {"task": one.plain.id}
        found, wanted = self.both(
            call,
            lambda: self.model.receive(
                client, made.updates, control=control, buffers=made.statistics, is_sum=made.is_sum,
                clients=made.clients, **by),
            lambda: self.received(one, made, **plainly, **more),
        )  # fmt: skip
        if found is not None:
            self.same_receipt(found, wanted, made.is_measured)
        overwrite(made.update)

    def received(self, one: Sent, made: Made, **how: Any) -> fastagg.Receipt:
        """The answer as the plain server gets it."""
        if made.is_sum:
            return self.plain.receive_partial(one.task.client, made.update, **how)
        update = one.plain.delta(made.update) if made.kind == "model" else made.update
        if isinstance(update, fastagg.Encoded) and not self.quantised:  # else it may be the row, as it is
            update = update.decode()
        return self.plain.receive(one.task.client, update, num_samples=made.samples, **how)

    def many(self, route: str) -> None:
        """Several answers in a call: each has the outcome that it has in the model."""
        sent: dict[Any, tuple[Sent, Made]] = {}  # a client may have several tasks; of rows only the last is read back
        among = {"models": ("model",), "differences": ("difference",)}.get(route)
        # what is rounded at each step is read back after it
        for _ in range(1 if self.coded or self.rounds_model else self.draw.randint(2, 6)):
            if (one := self.chosen()) is not None and not one.model.end:
                kind = self.draw.choice(among or (*self.all_routes, "bad"))
                sent.setdefault((one.task.client, self.quantised or one.task.version), (one, self.made(one, kind)))
        told = [(one.task.client, one.task.version, made.kind, made.samples, made.error) for one, made in sent.values()]
        self.did.append(f"{route}: {told}")
        answers = [
            fastagg.Answer(one.task.client, made.update, one.task.version, made.samples, kind=made.kind,
                           sent=one.task if made.kind == "model" else None, measures=self.draw.random() < 0.5,
                           still=self.apart.random() < 0.5)
            for one, made in sent.values()
        ]  # fmt: skip

        def on_model() -> list[Any]:
            return [self.outcome(one, made) for one, made in sent.values()]

        def plainly() -> list[Any]:
            outcomes: list[Any] = []
            for one, made in sent.values():
                try:
                    outcomes.append(self.received(one, made, version=one.task.version))
                except fastagg.FastaggError as error:
                    outcomes.append(error)
            return outcomes

        found, wanted = self.both(lambda: self.server.receive_many(answers), on_model, plainly)
        for outcome, other in zip(found, wanted, strict=True):
            if isinstance(other, Receipt) and isinstance(outcome, fastagg.Receipt):
                self.same_receipt(outcome, other, False)
            elif type(outcome).__name__ != other:
                raise Wrong(f"the outcome is {outcome!r}, and the model's {other}")
        for _, made in sent.values():
            overwrite(made.update)

    def outcome(self, one: Sent, made: Made) -> Any:
        model, client, version = self.model, one.task.client, one.task.version
        try:
            if made.error:
                model.answered(client, version)
                return made.error
            return model.receive(
                client, made.updates, version, buffers=made.statistics, is_sum=made.is_sum, clients=made.clients
            )
        except Refused as refused:
            return str(refused)

    def in_chunks(self, client: Any, sent: Any, samples: Any, named: dict[str, Any]) -> fastagg.Receipt:
        coded = isinstance(sent, fastagg.Encoded)
        data = sent.to_bytes() if coded else sent.numpy().tobytes()
        how: dict[str, Any] = {"encoded": len(data)} if coded else {"dtype": sent.dtype}
        with self.server.receiving(client, num_samples=samples, **named, **how) as upload:
            step = max(7, len(data) // 3)
            for at in range(0, len(data), step):
                upload.write(data[at : at + step])
                if self.disk is not None and self.draw.random() < 0.3:
                    self.server.checkpoint()
        receipt: fastagg.Receipt = upload.receipt
        return receipt

    def posted(self, one: Sent) -> None:
        route = self.draw.choice(("flat", *HALVES, "int8"))
        sent, u, _ = self.update(route)
        samples = self.samples()
        samples = 2.5 if isinstance(samples, tuple) else samples
        kind = {"flat": "float32", HALVES[0]: "float16", HALVES[1]: "bfloat16"}.get(route, "fastagg-encoded")
        data = sent.to_bytes() if route == "int8" else sent.contiguous().view(torch.uint8).numpy().tobytes()
        query = "" if samples is None else f"&num_samples={samples}"
        path = f"/update/{one.task.client}/{one.task.id}?part=0{query}"
        answers: list[Any] = []

        def post() -> None:
            answers.append(self.http("POST", path, content=data, headers={"Content-Type": f"application/x-{kind}"}))
            if answers[0].status_code != 200:
                raise getattr(fastagg, answers[0].json()["error"], fastagg.FastaggError)("posted")

        was = one.model.end
        if was == "AlreadyCounted":
            return
        _, wanted = self.both(
            post, lambda: self.model.receive(one.task.client, [(u, samples)], task=one.model),
            lambda: self.plain.receive(one.task.client, sent, num_samples=samples, task=one.plain.id) and None,
        )  # fmt: skip
        if wanted is not None and answers[0].json() != {"version": wanted.version, "applied": wanted.applied}:
            raise Wrong(f"{answers[0].json()}, and the model's {wanted}")

    # -- other events

    def bad(self) -> None:
        """What is refused changes nothing."""
        if (one := self.chosen()) is None:
            return
        self.due()
        sent = torch.from_numpy(self.numbers())
        what, error = self.draw.choice((
            (torch.cat([sent[:-1], torch.full((1,), math.nan)]), "NonFiniteUpdate"), (sent[:-1], "ShapeMismatch"),
            (sent * math.inf, "NonFiniteUpdate"), (sent.to(torch.int64), "DTypeMismatch"),
        ))  # fmt: skip
        samples = self.samples()

        def on_model() -> None:
            if error == "NonFiniteUpdate":  # what an update is, is seen before whose it is
                self.model.answered(one.task.client, one.task.version)
            raise Refused(error)

        def of(server: fastagg.Server) -> Callable[[], Any]:
            return lambda: server.receive(one.task.client, what, one.task.version, samples)

        self.both(of(self.server), on_model, of(self.plain), True)

    def again(self) -> None:
        """An answer that came already, or whose task is over, or of a client that is not there."""
        ended = [one for one in self.sent if one.model.end]
        if ended:
            one = self.draw.choice(ended)
            self.due()
            sent, u, _ = self.update("flat")
            client, samples, (named, by, plainly) = one.task.client, self.samples(), self.named(one)
            self.both(
                lambda: self.server.receive(client, sent, num_samples=samples, **named),
                lambda: self.model.receive(client, [(u, samples)], **by),
                lambda: self.plain.receive(client, sent, num_samples=samples, **plainly), True,
            )  # fmt: skip

    def close(self) -> None:
        found, wanted = self.everywhere(lambda server: server.close_round())
        if (found is None) != (wanted is None) or (found and abs(found - wanted) > 1e-6 * wanted):
            raise Wrong(f"close_round() is {found}, and the model's {wanted}")

    def forget(self) -> None:
        client = self.draw.choice(self.ids)
        owed = [task.version for task in self.model.owed(client)]
        version = self.draw.choice((None, None, *owed, 99))
        self.everywhere(lambda server: server.forget(client, version), True)

    def expire(self) -> None:
        before = self.draw.choice((0, self.model.version, max(0, self.model.version - 1)))
        found, wanted = self.everywhere(lambda server: server.expire(before))
        if found != wanted:
            raise Wrong(f"{found} tasks ended, and the model's {wanted}")

    def rate(self) -> None:
        rate = self.draw.choice((0.05, 0.3, 0.8, 0.0))
        self.everywhere(lambda server: setattr(server, "lr", rate))

    def time(self) -> None:
        seconds = self.draw.choice((0.6 * GRACE, 2 * GRACE, 2 * LEASE))
        inside.pass_time(self.server, seconds)
        inside.pass_time(self.plain, seconds)
        self.model.time += seconds
        self.due()
        self.everywhere(lambda server: server.expire())

    def hand_on(self) -> None:
        if (one := self.chosen()) is None:
            return
        client = self.draw.choice(self.ids)
        self.due()

        def on_model() -> Task:
            self.model.find(one.task.client, None, one.model)
            return self.model.dispatch(client, one.task.version)

        plain: list[fastagg.Dispatch] = []
        task, model = self.both(
            lambda: self.server.hand_on(one.task, client), on_model,
            lambda: plain.append(self.plain.hand_on(one.plain, client)) or plain[0],  # type: ignore[func-returns-value]
        )  # fmt: skip
        if task is not None:
            model.sent = one.model.sent
            self.sent.append(Sent(task, model, plain[0]))

    # -- states

    def opened(self) -> fastagg.Server:
        home = self.values["home"]
        if home == "memory":
            return self.make()
        self.disk = self.disk or LossyDisk()
        return open_on(self.disk, self.make, home, segment=1 << 16)

    def is_as_before(self, server: fastagg.Server) -> None:
        """A server that continues from a state is the model's."""
        if server.version != self.model.version or not np.array_equal(server.flat.double().numpy(), self.model.x):
            raise Wrong(f"restored: {server.flat}, and the model's {self.model.x}")

    def replaced(self, server: fastagg.Server) -> None:
        self.is_as_before(server)
        if self.disk is None or server.__dict__.get("_log") is not None:
            self.server, self.seen = server, server.version
            self.model.restart()
            if self.values["lease"] or self.values.get("grace"):  # their time begins anew with a state that is loaded
                self.plain.load_state_dict(self.plain.state_dict())

    def save(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "saved"
            self.server.save(path)
            self.replaced(fastagg.load(path))

    def load(self) -> None:
        new = self.make()
        new.load_state_dict(self.server.state_dict())
        new.lr = self.server.lr  # a setting, which stays the new server's
        self.replaced(new)

    def copy(self) -> None:
        self.replaced(copy.deepcopy(self.server))

    def checkpoint(self) -> None:
        self.server.checkpoint()

    def reopen(self) -> None:
        self.server.close()
        self.replaced(self.opened())

    def crash(self) -> None:
        """The process ends, or the power, after a few events that are lost with it."""
        self.server.flush()
        assert self.disk is not None
        steps = self.draw.random() < 0.5
        left = self.disk.after(len(self.disk.steps), self.draw, 512) if steps else self.disk.copy()
        models = [one.model for one in self.sent]
        self.model.store = lambda client, row: row
        model, tasks = copy.deepcopy((self.model, models))
        sent = [one._replace(model=task) for one, task in zip(self.sent, tasks, strict=True)]
        plain, rate = self.plain.state_dict(), self.plain.lr
        self.kept_store()
        lost: list[Sent] = []
        for _ in range(self.draw.randrange(3)):
            self.answer()
        lost = [one for one in self.sent if one.model.version > model.version]
        self.server.close()
        self.disk, self.model, self.sent = left, model, sent
        self.plain.load_state_dict(plain)
        self.plain.lr = rate
        self.kept_store()
        self.replaced(self.opened())
        for one in lost[:1]:
            before = self.server.state_dict()
            try:
                self.server.receive(one.task.client, torch.zeros(self.size), num_samples=1, task=one.task.id)
            except (fastagg.StaleIncarnation, fastagg.UnknownClient):
                if not same(before, self.server.state_dict()):
                    raise Wrong("an answer to a lost task was refused, and something has changed") from None
            else:
                raise Wrong("an answer to a lost task counts")

    # -- a life

    def act(self, name: str) -> None:
        self.did.append(name)
        getattr(self, name.replace(" ", "_"))()

    def live(self, events: int) -> None:
        """So many events."""
        often = {"dispatch": 4, "answer": 10, **{event: 1.2 for event in self.values["events"]}}
        try:
            for client in self.ids[:3]:
                self.dispatch(client)
            for _ in range(events):
                self.act(self.draw.choices(list(often), list(often.values()))[0])
        except Ended:
            pass
        else:
            if any(digest(value) != then for value, then in self.held):
                raise Wrong("what was handed out has changed")
        finally:
            if self.disk is not None:
                self.server.close()


def run(seed: int, number: int, values: Values, events: int = 20) -> None:
    """Live the life of a server. AssertionError: it is not its model's."""
    beside = None
    try:
        beside = Beside(values, f"{seed} {number}")
        beside.live(events)
    except Exception as error:
        done = [] if beside is None else beside.did[-6:]
        described = None if beside is None else beside.described
        raise Wrong(
            f"seed {seed}, server {number}: {type(error).__name__}: {error}\n{described}\n{dict(values)}\n{done}"
        ) from error
