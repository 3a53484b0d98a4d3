"""What every integration shares: replies, failures, goals, evaluation aside, summaries."""

import json
import math
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from support import inside
from support.replay import answered, taken
from support.trackers import RowTracker

import fastagg
from fastagg import integrations
from fastagg.integrations import resolved
from fastagg.integrations.evaluation import Evaluation, Window
from fastagg.integrations.goals import Best, Failures, Settings, Stop, Watch
from fastagg.integrations.models import drop_round
from fastagg.integrations.replies import ClientFailure, LateReply, answer
from fastagg.integrations.session import Book, Session

MODEL = {"w": torch.linspace(-1, 1, 12).view(3, 4), "bn.running_mean": torch.zeros(3)}


class Clock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


# -- replies -----------------------------------------------------------------------------------------------------


LAYER = {"l.weight": torch.zeros(3, 4)}
ADAPTER = {"l.lora_A.weight": torch.ones(1, 4), "l.lora_B.weight": torch.ones(3, 1)}
GRADIENT = {"l.weight": torch.ones(3, 4)}, {"kind": "gradient"}
KINDS = {  # a server, and a reply that it takes
    "model": (fastagg.FedBuff, {}, (LAYER,)),
    "difference": (fastagg.FedBuff, {}, (LAYER, {"kind": "difference"})),
    "delta": (fastagg.FedBuff, {}, ({"l.weight": torch.ones(3, 4)}, {"kind": "delta"})),
    "control": (fastagg.FedAC, {"lr": 0.1}, (LAYER, {"control": torch.zeros(12)})),
    "gradient": (fastagg.ASGD, {"lr": 0.1}, GRADIENT),
    "ACED": (fastagg.ACED, {"lr": 0.1, "num_clients": 2, "warmup": "partial"}, GRADIENT),
    "lora": (fastagg.FedBuff, {}, (ADAPTER, {"kind": "lora"})),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_reply_answers_its_own_task_and_no_other(kind: str) -> None:
    """Twice while the client has another task of that version, after a restart, and after the server ended its task."""
    make, settings, reply = KINDS[kind]
    server = make(LAYER, **settings)
    first, _ = server.dispatch(0), server.dispatch(0)
    [receipt], [again] = (taken(server, (first, *reply)) for _ in range(2))
    assert isinstance(receipt, fastagg.Receipt) and isinstance(again, fastagg.AlreadyCounted)
    kept = server.state_dict()
    lost = server.dispatch(1)
    server.load_state_dict(kept)
    server.dispatch(1)
    [outcome] = taken(server, (lost, *reply))
    assert isinstance(outcome, LateReply)
    session, task = Session(server), server.dispatch(1)
    server.forget(1)
    for _ in range(9):  # an event, no failure
        answered(session, [(1, task, *reply)])
    assert session.tally.refused == {"LateReply": 9} and not session.failures.is_out(1)


def test_outcomes_stand_in_the_order_of_the_answers() -> None:
    server = fastagg.FedBuff(MODEL, buffer_size=10)
    tasks = [server.dispatch(name) for name in "abcde"]
    nan = {name: array * math.nan for name, array in MODEL.items()}
    sent = ((MODEL,), (tasks[1].delta(MODEL), {"kind": "delta"}), (nan,), (MODEL, {"stated": {"fastagg-version": 3}}),
            (MODEL, {"kind": "gradient"}))  # fmt: skip
    outcomes = taken(server, *((task, *reply) for task, reply in zip(tasks, sent, strict=True)))
    assert [type(outcome) for outcome in outcomes] == [
        fastagg.Receipt, fastagg.Receipt, fastagg.NonFiniteUpdate, fastagg.UnknownVersion, fastagg.ConfigError
    ]  # fmt: skip
    assert [outcome.client for outcome in outcomes[:2]] == ["a", "b"]
    assert "from version 3, its task was version 0" in str(outcomes[3])


def test_a_note_is_read_by_its_prefix() -> None:
    server = fastagg.FedBuff(MODEL)
    task = server.dispatch("a")
    told = {"fastagg-kind": "delta", "fastagg-version": 0, "lr": 0.1}
    read = answer(server, task, MODEL, told, samples=7)
    assert (read.update, read.kind, read.version, read.num_samples, read.task) == (MODEL, "delta", 0, 7, task.id)
    assert answer(server, task, MODEL, {"fastagg_kind": "delta"}, prefix="fastagg_").kind == "delta"
    changed = answer(server, task, MODEL, {}, kind="difference")
    assert changed.kind == "delta" and torch.equal(changed.update["w"], MODEL["w"])
    for key, value in (("kind", "gradeint"), ("version", "3")):
        with pytest.raises(fastagg.ConfigError, match=f"fastagg-{key}"):
            answer(server, task, MODEL, {f"fastagg-{key}": value})


def test_the_book_knows_who_has_what_until_when_and_who_is_waited_for() -> None:
    clock, server = Clock(), fastagg.FedBuff(MODEL, buffer_size=10, lease=60.0)
    book = Book[str, str](server, clock)
    for key, holder, timeout in (("m0", "a", math.inf), ("m1", "b", 5.0), ("m2", "c", 20.0)):
        book.put(key, holder, server.dispatch(holder), timeout)
    assert book.busy == {"a", "b", "c"} and book.keys_of("b") == ["m1"] and not book.late()
    clock.now = 10.0
    [late] = book.end(book.late())
    assert late.holder == "b" and book.pop("m1") is None
    assert isinstance(taken(server, (late.task, MODEL))[0], LateReply)
    inside.pass_time(server, 61.0)  # the server ends what is left
    first = book.pop("m0")
    assert first is not None and isinstance(taken(server, (first.task, MODEL))[0], LateReply)
    assert book.keys_of() == ["m2"] and not book.late()
    clock.now = 21.0
    assert book.busy == {"c"} and book.late() == ["m2"]
    assert [task.holder for task in book.end()] == ["c"] and not book.busy
    server.expire()
    assert not len(server.state_dict()["tasks"]["task_client"])


# -- failures ----------------------------------------------------------------------------------------------------


def test_a_client_waits_twice_as_long_each_time_and_starts_anew_when_it_succeeds() -> None:
    clock = Clock()
    book = Failures(Settings(max_failures=None, max_in_a_row=None, retry_after=5), clock)
    waits = [book.failed("a", "it crashed") for _ in range(9)]
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert book.rests("a") and not book.rests("b")
    clock.now = 301.0
    assert not book.rests("a")
    book.taken("a")
    assert book.failed("a", "it crashed") == 5


def test_one_bad_client_is_left_out_and_the_others_go_on() -> None:
    book = Failures(Settings(max_failures=2, retry_after=0))
    book.failed("a", "it crashed")
    assert not book.is_out("a")
    assert book.failed("a", "it crashed") == math.inf and book.is_out("a")
    book.check(["a", "b"])
    with pytest.raises(
        fastagg.RunFailed, match=r"each of the 1 clients that are there failed 2 times.*client a: it crashed"
    ):
        book.check(["a"])


def test_failures_in_a_row_over_all_end_the_run_with_the_commonest_cause() -> None:
    book = Failures(Settings(max_failures=None, max_in_a_row=4, retry_after=0))
    for client in "abc":
        book.failed(client, "no such file")
    book.taken("d")
    for client in "abc":
        book.failed(client, "no such file")
    with pytest.raises(
        fastagg.RunFailed, match=r"4 failures in a row.*3 of them: no such file; the last: client d: NaN"
    ):
        book.failed("d", "NaN")


def test_time_without_an_update_ends_the_run() -> None:
    clock = Clock()
    book = Failures(Settings(max_seconds=10), clock)
    clock.now = 9.0
    book.taken("a")
    clock.now = 18.0
    book.check(["a"])
    clock.now = 19.5
    with pytest.raises(fastagg.RunFailed, match="no update was taken in 10 s; no client is there"):
        book.check([])


# -- goals -------------------------------------------------------------------------------------------------------


def test_better_is_by_the_metrics_name() -> None:
    up, down = ("accuracy", "f1", "himself_accuracy"), ("train/loss", "perplexity", "val_mse", "valLoss", "MSE")
    for metric in up + down:
        assert Watch(metric, None).sign == (1.0 if metric in up else -1.0)
    assert Watch("loss", "max").sign == 1.0
    watch = Watch("loss", None)
    assert [watch.see(v, {"loss": x}) for v, x in enumerate((3.0, 2.0, 2.5, 1.0))] == [True, True, False, True]
    assert watch.best == 1.0 and watch.version == 3 and watch.since == 0
    assert watch.reached(1.5) and not watch.reached(0.5)
    assert not watch.see(4, {"train/loss": 0.1}), "another kind of metric is not this one"
    with pytest.raises(fastagg.ConfigError, match=r"expected one of \['accuracy'\], got 'loss'"):
        watch.see(5, {"accuracy": 0.1})


def test_goals_are_read_from_plain_data() -> None:
    stop = Settings(stop={"metric": "loss", "patience": 3}).stop
    assert stop == Stop("loss", patience=3)
    assert Settings(best="best.pt", stop=stop).best == Best("best.pt", "loss")
    assert Settings(best="best.pt").best.metric == "accuracy"
    with pytest.raises(fastagg.ConfigError, match="target, patience or seconds"):
        Settings(stop={})


# -- a session ---------------------------------------------------------------------------------------------------


def run(settings: Settings, values: list[float], clock: Clock | None = None) -> tuple[Session, list]:
    """A session whose versions have these accuracies, until it says that it is over."""
    server = fastagg.FedBuff(MODEL, buffer_size=1)
    session = Session(server, settings, lambda version, model: {"accuracy": values[version]}, clock=clock or Clock())
    session.stepped()
    rows = session.settle(wait=True)
    while session.over is None and server.version + 1 < len(values):
        task = server.dispatch("a")
        answered(session, [("a", task, {n: t + 0.1 for n, t in task.params.items()})])
        session.stepped({"loss": 1.0})
        rows += session.settle(wait=True)
        if clock is not None:
            clock.now += 1.0
    session.close()
    return session, rows


def test_a_target_patience_and_seconds_end_a_run() -> None:
    session, rows = run(Settings(stop={"target": 0.8}), [0.1, 0.5, 0.85, 0.9, 0.95])
    assert len(rows) == 3 and "accuracy reached 0.8: it is 0.85 at version 2" in session.over
    session, rows = run(Settings(stop=Stop(patience=2)), [0.1, 0.5, 0.4, 0.3, 0.9])
    assert len(rows) == 4 and "not been better in 2 evaluations than 0.5 at version 1" in session.over
    session, rows = run(Settings(stop={"seconds": 2.5}), [0.1] * 9, Clock())
    assert len(rows) == 5 and "2.5 s are over" in session.over
    assert "it ended because 2.5 s" in session.summary()


def test_the_best_model_is_in_its_file_though_the_server_went_on(tmp_path) -> None:
    session, _ = run(Settings(best=tmp_path / "best.pt"), [0.1, 0.5, 0.9, 0.3])
    kept = torch.load(tmp_path / "best.pt")
    torch.testing.assert_close(kept["w"], MODEL["w"] + 0.2)
    torch.testing.assert_close(session.server.parameters()["w"], MODEL["w"] + 0.3)
    assert "best accuracy: 0.9 at version 2" in session.summary()


def test_on_version_is_told_everything_and_may_end_the_run() -> None:
    seen = []

    def on_version(version, metrics, model):
        seen.append((version, metrics, model["w"].clone()))
        if version == 2:
            raise StopIteration("enough")

    session, rows = run(Settings(on_version=on_version), [0.1, 0.2, 0.3, 0.4])
    assert session.over == "enough" and [row.version for row in rows] == [0, 1, 2]
    version, metrics, model = seen[-1]
    assert version == 2 and metrics["accuracy"] == 0.3 and metrics["train/loss"] == 1.0 and metrics["run/updates"] == 2
    torch.testing.assert_close(model, MODEL["w"] + 0.2)


@pytest.mark.parametrize("aside", [False, True])
def test_stop_iteration_from_an_evaluation_ends_the_run_with_its_result(aside: bool) -> None:
    def evaluate(version, model):
        raise StopIteration({"accuracy": 0.7})

    session = Session(fastagg.FedBuff(MODEL), Settings(evaluate_aside=aside), evaluate)
    session.stepped()
    [row] = session.settle(wait=True)
    session.close()
    assert row.result == {"accuracy": 0.7} == {"accuracy": row.metrics["accuracy"]}
    assert session.over == "the evaluation of version 0 said so"


def test_an_evaluation_that_fails_is_raised_and_not_hidden() -> None:
    session = Session(fastagg.FedBuff(MODEL), None, lambda version, model: 1 / 0)
    session.stepped()
    with pytest.raises(ZeroDivisionError):
        session.settle(wait=True)
    session.close()


def test_the_last_version_is_evaluated_though_it_waits_behind_one_that_is() -> None:
    """The evaluation is not due when it comes, and the run ends before the previous version's evaluation has ended."""
    free = threading.Event()

    def evaluate(version: int, model: object) -> dict[str, float]:
        assert version == 0 or free.wait(30)
        return {"accuracy": version / 10}

    server = fastagg.FedBuff(MODEL, buffer_size=1)
    session = Session(server, Settings(evaluate_every=2), evaluate)
    session.stepped()
    for _ in range(3):
        task = server.dispatch("a")
        taken(server, (task, task.params))
        session.stepped({"loss": 2.0})
    session.stepped(last=True)
    free.set()
    rows = session.settle(wait=True)
    assert [(row.version, row.result) for row in rows] == [
        (0, {"accuracy": 0.0}), (1, None), (2, {"accuracy": 0.2}), (3, {"accuracy": 0.3}),
    ]  # fmt: skip
    assert rows[-1].metrics["train/loss"] == 2.0 and rows[-1].metrics["accuracy"] == 0.3
    session.close()


def test_evaluations_that_wait_are_few() -> None:
    """If models pile up, adding one waits. So memory does not grow."""
    may, now = threading.Semaphore(0), 0
    book = Evaluation(lambda version, model: may.acquire(timeout=30) and {}, True)

    def add():
        nonlocal now
        for version in range(8):
            book.add(version, None, True)
            now = version + 1

    thread = threading.Thread(target=add)
    thread.start()
    while now < 2:
        time.sleep(0.001)
    thread.join(0.3)  # if it is late, nothing is shown, and nothing fails
    most = now
    for _ in range(8):
        may.release()
    thread.join(30)
    assert most <= 4 and now == 8
    assert [version for version, *_ in book.finished(wait=True)] == list(range(8))
    book.close()


def test_counts_and_a_resumption() -> None:
    server = fastagg.FedBuff(MODEL, buffer_size=1)
    clock = Clock()
    make = partial(
        Session, server, Settings(stop=Stop(patience=3)), lambda version, model: {"accuracy": 0.5}, clock=clock
    )
    session = make()
    tasks = {name: server.dispatch(name) for name in "abc"}
    good = {n: t + 1 for n, t in MODEL.items()}
    answered(session, [("a", tasks["a"], good), ("b", tasks["b"], {**good, "w": torch.ones(2)})])
    answered(session, [("c", tasks["c"], good)])
    session.refused("b", ClientFailure("it left"))
    session.stepped()
    session.settle(wait=True)
    clock.now = 4.0
    assert session.tally.updates == 2 and session.tally.refused == {"ShapeMismatch": 1} and session.tally.failed == 1
    assert session.tally.longest == 1 and session.tally.by_client == {"a": 1, "c": 1}
    for words in (
        "version 2 after 2 updates of 2 clients in 4.0 s",
        "0.50 versions in the mean, 1 at most",
        "1 ShapeMismatch",
    ):
        assert words in session.summary()
    again = make()
    again.load_state_dict(session.state_dict())
    assert again.tally == session.tally and again.seconds == 4.0
    assert again.summary() == session.summary()
    session.close()
    again.close()


def test_the_mean_is_said_of_the_newest_version_among_those_evaluated() -> None:
    server, window = fastagg.FedAsync(torch.zeros(2)), Window()
    old = server.dispatch("a")
    server.receive("b", torch.ones(2), server.dispatch("b").version)
    new = server.dispatch("c")
    assert window.end(0) is None
    for task, metrics in (
        (new, {"accuracy": 0.5, "loss": 2.0, "note": "text"}),
        (old, {"accuracy": 1.0, "loss": math.nan}),
        (old, None),
    ):
        assert window.end(3) is None
        window.add(task, metrics)
    found = window.end(3)
    assert found is not None and found[0] is new and found[1] == {"accuracy": 0.75, "loss": 2.0}  # NaN is left out
    assert window.end(1) is None, "it begins anew"


def test_a_setting_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "echo_of_test.py").write_text(
        "import fastagg, torch\n\n\ndef data():\n"
        "    return fastagg.Distillation(torch.nn.Linear(3, 2), torch.zeros(5, 3))\n\n\ndef other():\n    return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = resolved({"lr": 1.0, "distill": "echo_of_test:data"})
    assert isinstance(found["distill"], fastagg.Distillation) and found["lr"] == 1.0
    assert resolved(None) == {} and resolved({"distill": found["distill"]}) == {"distill": found["distill"]}
    for name in ("echo_of_test", "echo_of_test:none", "no_such_module:data", ":data", ""):
        with pytest.raises(fastagg.ConfigError, match="expected 'module:function'"):
            resolved({"distill": name})
    with pytest.raises(fastagg.ConfigError, match="returned a int"):
        resolved({"distill": "echo_of_test:other"})


def test_missing() -> None:
    with pytest.raises(fastagg.MissingDependency) as caught:
        integrations.require("no-such-framework", "1.2", "nosuch")
    assert "pip install 'fastagg[nosuch]'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ImportError)


@pytest.mark.parametrize(
    ("found", "least", "ok"), [("1.9.2", "1.41", False), ("1.41.0", "1.41", True), ("2.0rc1", "1.41", True)]
)
def test_versions_are_compared_as_numbers(monkeypatch, found: str, least: str, ok: bool) -> None:
    monkeypatch.setattr(integrations, "version", lambda package: found)
    if ok:
        integrations.require("flwr", least, "flower")
    else:
        with pytest.raises(fastagg.MissingDependency, match=r"flwr 1\.9\.2 is too old"):
            integrations.require("flwr", least, "flower")


def test_the_package_imports_no_framework() -> None:
    frameworks = "{'flwr', 'nvflare', 'appfl'}"
    code = f"import sys, fastagg, fastagg.integrations; sys.exit(bool({frameworks} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)  # -P: not the checkout, which may not be built


def test_a_session_tells_its_trackers_by_version() -> None:
    kept = RowTracker()
    server = fastagg.FedBuff({"w": torch.zeros(3)}, buffer_size=1)
    session = Session(server, Settings(trackers=kept), lambda version, model: {"accuracy": version / 10})
    session.stepped()
    task = server.dispatch("a")
    answered(session, [("a", task, {"w": torch.ones(3)})])
    session.stepped({"loss": 2.0})
    session.settle(wait=True)
    session.evaluated(1, {"accuracy": 0.3})
    session.close()
    session.close()
    assert [step for _, step in kept.rows] == [0, 1, 1] and kept.closed == 1
    assert kept.rows[1][0].items() >= {"accuracy": 0.1, "train/loss": 2.0, "run/updates": 1.0}.items()
    assert kept.rows[2][0] == {"clients/accuracy": 0.3}
    json.dumps(kept.rows)  # plain numbers


@pytest.mark.parametrize("before", [0, 2])
def test_a_dropped_round_leaves_no_trace(before: int) -> None:
    """Its updates, its statistics, and that its clients took part: later rounds are those of a server without it."""
    servers = [fastagg.Krum(MODEL, num_malicious_nodes=1, clients_per_round=None) for _ in range(2)]

    def play(server: fastagg.Server, clients: int, by: float) -> None:
        for task in [server.dispatch(client) for client in range(clients)]:
            server.receive_model(task, {name: array + by * (1 + task.client) for name, array in task.params.items()})

    for number in range(before + 2):
        for server in servers:
            if number == before and server is servers[0]:
                play(server, 3, 50.0)
                with pytest.raises(fastagg.ConfigError, match="krum needs 5"):
                    server.close_round()
                drop_round(server)
            play(server, 5, 0.5)
            server.close_round()
    dropped, plain = (server.state_dict() for server in servers)
    assert torch.equal(dropped["flat"], plain["flat"]) and dropped["version"] == before + 2
    assert torch.equal(dropped["buffers"]["values"], plain["buffers"]["values"])
    took, want = (state["tasks"]["participation"] for state in (dropped, plain))
    assert all(torch.equal(took[name], want[name]) for name in ("step", "version", "in_step", "times"))
