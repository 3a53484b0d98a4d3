import tomllib

import pytest

from fastagg._checks import parse_change
from fastagg.errors import ConfigError
from fastagg.sim.recipes.config import from_toml, load, to_toml
from fastagg.sim.runs.run import run

SYNTHETIC = {"data": {"name": "synthetic:load", "clients": 12}}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        SYNTHETIC,
        {"data": {"name": "npz:load", "dir": "/data"}},
        {"delay": {"name": "exponential", "mean": 2.5}},
        {"delay": {"name": "version", "tau_max": 4}, "participation": {"rule": "all"}},
        {"client.steps": 7, "client.momentum": 0.5},
        {"algorithm": {"name": "FADAS", "lr": 1e-3, "betas": [0.9, 0.99], "delay_threshold": "none"}},
        {"run": {"time": 12.5}},
    ],
)
def test_a_config_survives_the_trip_through_toml(tiny, changes):
    config = tiny(changes)
    again = from_toml(to_toml(config), "again")
    assert again == config
    assert to_toml(again) == to_toml(config)


def test_written_toml_holds_every_default(tiny):
    config = tiny()
    written = tomllib.loads(to_toml(config))
    for section in ("client", "delay", "run", "data"):
        defaults = getattr(config, section).model_dump(exclude_none=True)
        assert written[section].keys() == defaults.keys(), section


def test_keywords_of_the_algorithm_are_passed_on_with_none(tiny):
    config = tiny({"algorithm.delay_threshold": "none"})
    assert config.algorithm.keywords == {"lr": 1.0, "buffer_size": 3, "delay_threshold": None}


ROUND = {"participation": {"rule": "round"}}
AUTHORS = {"delay.counting": "authors"}
REFUSED = [
    ({"client.lrr": 1.0}, "unknown key client.lrr (known here: lr, batch_size, epochs"),
    ({"data.folder": "x"}, "unknown key data.folder (known here: name, clients, alpha"),
    ({"unlabelled.shar": 0.5}, "unknown key unlabelled.shar (known here: share, samples)"),
    ({"distill.rate": 0.5}, "unknown key distill.rate (known here: alpha, clip_norm"),
    ({"dropout.shape": 0.5}, "unknown key dropout.shape (known here: share, after)"),
    ({"client.learning_rate": 1}, "; did you mean 'lr'?"),
    ({"clinet.lr": 1}, "; did you mean 'client'?"),
    ({"algorithm.name": "fedbuf"}, "; did you mean 'FedBuff'?"),
    ({"algorithm.learning_rate": 1}, "; did you mean 'lr'?"),
    ({"algorithm.weighting": "sample"}, "got 'sample'; did you mean 'samples'?"),
    ({"speed": 1}, "unknown key speed, got 1; did you mean delay.speed?"),
    ({"data.name": "cifar"}, "data: unknown name 'cifar' (known: 'digits', 'module:function'"),
    ({"data": {}}, "data: the key name is missing"),
    ({"client": {}}, "client.lr: this key is missing"),
    ({"client": 3}, "client: expected a section with keys, got 3"),
    ({"client.lr": -0.1}, "client.lr: input should be greater than 0, got -0.1"),
    ({"client.lr": "fast"}, "client.lr: input should be a valid number, got 'fast'"),
    ({"client.lr": True}, "client.lr: input should be a valid number, got True"),
    ({"client.lr": float("nan")}, "client.lr: input should be a finite number, got nan"),
    ({"client.steps": 3, "client.epochs": 2}, "client: give epochs or steps, not both"),
    ({"client.momentum": 0.9, "client.optimizer": "adam"}, 'momentum is of the optimizer "sgd"'),
    ({"model.widths": [8, 0]}, "model.widths.1: input should be greater than 0"),
    ({"name": "../up"}, "name: string should match"),
    ({"seed": -1}, "seed: input should be greater than or equal to 0"),
    ({"seed": 2**63}, "seed: input should be less than"),
    ({"name.first": "x"}, "name.first: name is a value, not a section"),
    ({"client.a\nb": 1}, "unknown key client.'a\\nb' (known here"),
    ({"name.a\nb": 1}, "'name.a\\nb': name is a value, not a section"),
    ({"client.lr": "x" * 1000}, "got 'xxxxxxxxxxxx...xxxxxxxxxxxxx'"),
    ({f"key{k}": 1 for k in range(12)}, "; and 4 more"),
    # data
    ({"data.clients": 0}, "data.clients: "),
    ({"data.alpha": 0.0}, "data.alpha: input should be greater than 0"),
    ({**SYNTHETIC, "model.name": "cnn"}, "needs images"),
    ({"unlabelled.share": 1.0}, "unlabelled.share"),
    # participation
    ({"participation.concurrency": 0}, "participation.concurrency"),
    ({"participation.concurrency": 13}, "participation.concurrency is 13, more than the data's 12 clients"),
    ({"participation": {"rule": "concurrency"}}, "needs the key concurrency"),
    ({"participation": {"rule": "all", "concurrency": 3}}, "do not take it"),
    (ROUND, "FedBuff is asynchronous"),
    ({**AUTHORS, "participation": {"rule": "all"}}, "authors"),
    # delays, and clients that leave
    ({"delay.name": "slow"}, "delay: unknown name 'slow'"),
    ({"delay": {"name": "three-class", "gamma": 0.0}}, "delay.gamma: "),
    ({"delay": {"name": "three-class", "table": "medium"}}, "delay.table: "),
    ({"delay.counts": [6, 6]}, "three numbers"),
    ({"delay.counts": [6, 6, 6]}, "delay.counts are 18 clients, not the data's 12"),
    ({"delay": {"name": "size-tied", "gamma": -1.0}}, "delay.gamma: "),
    ({"delay": {"name": "exponential", "mean": -1.0}}, "delay.mean: "),
    ({"delay": {"name": "exponential", "spread": -1.0}}, "delay.spread: "),
    ({"delay": {"name": "exponential", "suspension": 1.0}}, "delay.suspension: "),
    ({"delay": {"name": "exponential", "speed": 0.0}}, "delay.speed: "),
    ({"delay": {"name": "exponential", "jitter": -0.1}}, "delay.jitter: "),
    ({"delay": {"name": "version"}}, "delay: give tau_max or mean, one of the two"),
    ({"delay": {"name": "version", "tau_max": 1}}, 'participation.rule must be "all"'),
    ({"delay": {"name": "version", "tau_max": -1}}, "delay.tau_max: "),
    ({"delay": {"name": "version", "tau_max": 2, "speed": 1.0}}, "unknown key delay.speed"),
    ({"dropout.share": 0.99}, "of 12 clients 1 must stay"),
    ({"dropout.share": 1.0}, "dropout.share"),
    # who lies, and what is sent
    ({"attack.name": "flip"}, "attack.name"),
    ({"attack.share": 1.0}, "attack.share"),
    ({"attack.strength": 0.0}, "attack.strength"),
    ({"encoding.format": "int3"}, "encoding.format"),
    ({"encoding.share": 0.0}, "encoding.share"),
    ({"encoding.download": "int4"}, "encoding.download"),
    ({"encoding.format": "int8", "model": {"name": "cnn"}}, "running statistics"),
    ({"encoding.download": "int8", "model": {"name": "cnn"}}, "encoding.download: what is encoded"),
    # the run
    ({"run": {}}, "run: give at least one of versions, uploads, time"),
    ({"run.versions": 0}, "run.versions: input should be greater than 0, got 0"),
    ({"run.evaluate_every": 1.5}, "run.evaluate_every: input should be a valid integer, got 1.5"),
    # the algorithm
    ({"algorithm.name": "FedMagic"}, "'FedMagic' is unknown (known: "),
    ({"algorithm.speed": 3}, "algorithm.speed: FedBuff has no such keyword (known: "),
    ({"algorithm.lr": -1.0}, "lr"),
    ({"algorithm.buffer_size": 0}, "buffer_size"),
    ({"algorithm": {"name": "ASGD"}}, "ASGD needs the keyword 'lr'"),
    ({"algorithm": {"name": "ASGD", "lr": 0.1}}, "ASGD takes gradients "),
    ({"algorithm": {"name": "ASGD", "lr": 0.1}, "client.steps": 3}, ": client.steps must be 1"),
    ({"algorithm": {"name": "FedAvg", "clients_per_round": 3}}, 'synchronous: participation.rule must be "round"'),
    (
        {**ROUND, "algorithm": {"name": "FedAvg", "clients_per_round": 13}},
        "12 clients with one answer each never fill a step of 13",
    ),
    (
        {**ROUND, "algorithm": {"name": "FedAvg", "clients_per_round": 4}, "dropout.share": 0.8},
        "12 clients 4 must stay",
    ),
    ({**ROUND, "algorithm": {"name": "FedProx", "clients_per_round": 4}}, "FedProx needs client.mu"),
    ({"algorithm": {"name": "FedEcho"}}, "unlabelled"),
    ({"algorithm": {"name": "FedEcho"}, "unlabelled.share": 0.5, "distill.alpha": [0.8, 0.2]}, "alpha"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_a_wrong_recipe_is_one_line_that_names_the_key_and_nothing_is_written(tiny, tmp_path, changes, message):
    with pytest.raises(ConfigError) as error:
        run(tiny(changes), tmp_path / "out")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_all_problems_are_named_at_once(tiny):
    with pytest.raises(ConfigError, match=r"^tiny: data\.alpha: .*; client\.lr: "):
        tiny({"client.lr": 0.0, "data.alpha": -1.0})


def test_a_file_that_is_missing_or_not_toml_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the recipe .*none\.toml"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(ConfigError, match=r"bad\.toml is not valid TOML"):
        load(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("client.lr=0.5", ("client.lr", 0.5)),
        ("run.versions = 7", ("run.versions", 7)),
        ("model.widths=[3, 4]", ("model.widths", [3, 4])),
        ("algorithm.policy=hinge", ("algorithm.policy", "hinge")),
        ('label="a = b"', ("label", "a = b")),
        ("algorithm.bias_correction=true", ("algorithm.bias_correction", True)),
    ],
)
def test_changes_are_read_as_toml_values_or_plain_text(text, expected):
    assert parse_change(text) == expected


@pytest.mark.parametrize("text", ["client.lr", "=3", "client..lr=3", ".lr=3"])
def test_a_malformed_change_is_refused(text):
    with pytest.raises(ConfigError, match="key=value"):
        parse_change(text)
