"""Rules, delays and sampling as Python objects, and comparisons as data: as the same by name, resumed to the bit."""

import re
from functools import partial

import pytest

import fastagg
from fastagg import sim
from fastagg.errors import ConfigError, RunFailed
from fastagg.sim.data import digits
from fastagg.sim.recipes.config import load

SHORT = {"run.uploads": 30, "data.clients": 30, "run.evaluate_every": 2}
NAME = "fedbuff-digits-large"


def assembled(model, *, num_clients, seed, lr=0.05):
    how = {"direction": fastagg.Buffer(4), "optimizer": fastagg.AMSGrad(lr), "staleness": fastagg.Constant()}
    return fastagg.Server(model, **how, num_clients=num_clients, seed=seed)


def law(client, number, steps, rng, slow=1.0):
    return 1.0 + client % 3 + slow * rng.random()


def oldest(idle, time, rng):
    return min(idle)


@pytest.mark.parametrize("place", ["setting", "section", "change", "dict"])
def test_an_object_is_what_its_name_would_be(place, tmp_path):
    by_name = {"algorithm": {"name": f"{__name__}:assembled", "lr": 0.02}, "delay.name": f"{__name__}:law"}
    named = sim.run(NAME, SHORT | {"delay": {"name": f"{__name__}:law", "slow": 2.0},
                                   "algorithm": by_name["algorithm"],
                                   "participation.sampling": f"{__name__}:oldest"})  # fmt: skip
    rule, slow = partial(assembled, lr=0.02), partial(law, slow=2.0)
    if place == "setting":
        passed = sim.run(NAME, SHORT, algorithm=rule, delay=slow, sampling=oldest)
    elif place == "section":
        how = {"name": assembled, "lr": 0.02}, {"name": law, "slow": 2.0}
        passed = sim.run(NAME, SHORT, algorithm=how[0], delay=how[1], sampling=oldest)
    elif place == "change":
        changes = {"algorithm": {"name": rule}, "delay.name": "given", "participation.sampling": oldest}
        passed = sim.run(NAME, SHORT | changes, delay=slow)
    else:
        recipe = named.config.model_dump(exclude_none=True)
        recipe |= {"algorithm": rule, "delay": slow, "sampling": oldest}
        passed = sim.run(recipe)
    assert passed.rows == named.rows and passed.delays == named.delays
    assert passed.summary["algorithm"] == "assembled"
    assert len({client.uploads for client in passed.clients}) > 1


def own_data(clients, seed, alpha=0.3):
    return digits.load(clients=clients, seed=seed, alpha=alpha, min_samples=2, test_share=0.2)


def test_a_function_of_data_is_what_its_name_would_be(tmp_path):
    named = sim.run(NAME, {**SHORT, "data": {"name": f"{__name__}:own_data", "clients": 30, "alpha": 0.5}})
    section = {"name": own_data, "clients": 30, "alpha": 0.5}
    passed = sim.run(NAME, {**SHORT, "data": section}, out=tmp_path)
    assert passed.rows == named.rows and "data" in passed.summary["inputs"]
    assert load(tmp_path / "config.toml").data.name == "given"
    assert sim.run(NAME, {**SHORT, "data": section}, out=tmp_path, resume="go on") == passed
    assert (
        sim.run(NAME, SHORT | {"data.clients": 50}, data=own_data).rows
        == sim.run(NAME, SHORT | {"data.clients": 50}).rows
    )


@pytest.mark.parametrize("target", [0, 90, float("nan"), "much"])
def test_a_target_that_is_no_accuracy_is_refused_before_any_run(target, tmp_path):
    with pytest.raises(ConfigError, match="target"):
        sim.compare(NAME, SHORT, seeds=2, target=target, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_methods_have_equal_chances_to_reach_a_target(tmp_path):
    """Each has its test at every so many updates, those of the one that is tested most rarely."""
    rules = {
        "FedBuff": {"algorithm": {"name": "FedBuff", "buffer_size": 5}},
        "FedAsync": {"algorithm": {"name": "FedAsync", "alpha": 0.5}},
    }
    found = sim.compare(NAME, SHORT | {"run.uploads": 100}, rules=rules, seeds=2, target=0.3, out=tmp_path)
    assert {result.summary["target_updates"] for result in found.results} == {10}
    for result in found.results:
        tested = [[row for row in result.rows if row.uploads <= point][-1] for point in range(0, 101, 10)]
        reached = next((row for row in tested if row.accuracy >= 0.3), None)
        assert result.summary["uploads_to_target"] == (reached and reached.uploads)
    assert "one in 10 updates for all" in (tmp_path / "report.html").read_text()


def test_a_comparison_warns_of_what_is_in_no_table_and_has_none_if_nothing_ended(tmp_path, caplog, capsys):
    def fails(model, *, seed, num_clients):
        if seed == 2:
            raise RuntimeError("out of luck")
        return assembled(model, num_clients=num_clients, seed=seed)

    found = sim.compare(NAME, SHORT, rules={"FedBuff": "FedBuff", "fails": fails}, seeds=3, out=tmp_path)
    assert "1 of 6 runs are in no table: fedbuff-digits-large.fails/seed2 (RuntimeError: out of luck)" in caplog.text
    assert found.to_latex().count("(n=2)") >= 2
    none = sim.compare(NAME, SHORT, rules={"fails": fails}, seeds=[2], out=tmp_path / "none")
    with pytest.raises(RunFailed, match=r"no run ended.*out of luck"):
        none.to_latex()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"algorithm": lambda model: 3}, "returned a int, expected a fastagg.Server"),
        ({"algorithm": {"name": fastagg.FADAS, "lrr": 1}}, "FADAS has no such keyword.*did you mean 'lr'"),
        ({"algorithm": 3}, "algorithm: expected a section"),
        ({"delay": lambda client: 1.0}, "delay.name: the function does not take these arguments"),
        ({"delay": lambda client, number, steps, rng: -1.0}, "the function's result: expected .* >= 0, got -1.0"),
        ({"sampling": lambda idle, time, rng: 99}, "expected one of the 30 idle clients, got 99"),
        ({"sampling": "best"}, "sampling should be 'uniform'.*got 'best'"),
        ({"sampling": "availability"}, "needs the key file"),
        ({"delay": {"name": "pareto", "shape": 1.0}}, "greater than 1"),
        ({"delay": "given"}, "delay: expected a section"),
        ({"delay": {"name": "given"}}, 'delay.name "given" is what a program passes'),
        ({"algorithm": {"name": "given"}}, 'algorithm.name "given" is what a program passes'),
    ],
)
def test_objects_that_do_not_fit_are_refused_by_key(settings, words):
    with pytest.raises(ConfigError, match=words):
        sim.run(NAME, SHORT, **settings)


RULES = {
    "FedBuff": "FedBuff",
    "mine": assembled,
    "ACE": {"algorithm": {"name": "ACE", "lr": 0.1}, "client": {"steps": 1, "epochs": "none"}},
}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    return sim.compare(NAME, SHORT, rules=RULES, delay=law, seeds=[3, 5], grid={"client.lr": [0.05, 0.1]}, target=0.2,
                       baseline="FedBuff", jobs=2, out=tmp_path_factory.mktemp("compared"))  # fmt: skip


def test_a_comparison_has_every_rule_setting_and_seed(comparison):
    assert not comparison.failed and len(comparison.results) == 3 * 2 * 2
    assert [group.label for group in comparison.groups[:2]] == ["FedBuff, lr 0.05", "mine, lr 0.05"]
    assert all(group.seeds == [3, 5] for group in comparison.groups)
    alone = sim.run(NAME, SHORT | {"client.lr": 0.1}, algorithm=assembled, delay=law, seed=5)
    (group,) = (group for group in comparison.groups if group.label == "mine, lr 0.1")
    assert group.results[1].rows == alone.rows


def test_a_table_for_latex_has_every_number_and_no_sign_that_breaks_it(comparison):
    text = comparison.to_latex("50% & more", "tab:one")
    assert r"\caption{50\% \& more}" in text and r"\label{tab:one}" in text and r"\toprule" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 1 + 3 and len({line.count("&") for line in rows}) == 1
    assert not re.search(r"(?<!\\)[%#_]|±", text.replace("tab:one", ""))


def test_a_figure_has_the_size_and_the_type_of_a_column(comparison):
    figure = comparison.figure("accuracy", over="time", width=3.3, font_size=7)
    assert figure.get_size_inches()[0] == pytest.approx(3.3) and len(figure.axes) == 1
    assert not figure.get_suptitle()  # which a paper has as a caption
    figure.draw_without_rendering()
    texts = [*figure.axes[0].get_xticklabels(), figure.axes[0].xaxis.label, *figure.legends[0].get_texts()]
    assert all(text.get_fontsize() <= 7 for text in texts)
    with pytest.raises(ConfigError, match=r"figure: expected one of .*'accuracy'.*got 'nothing'"):
        comparison.figure("nothing")


def test_rules_of_a_table_are_its_own():
    with pytest.raises(ConfigError, match="is a table, which has its own methods"):
        sim.compare("fedecho-table2-small", rules=RULES)
