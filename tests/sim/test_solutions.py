"""reproduction/solutions.py: what is trained on, what is distilled on, and how an answer is scored."""

import pytest
import scoring
import torch

from fastagg.errors import DataError
from fastagg.sim.data.federated import Samples
from fastagg.sim.recipes import tables
from fastagg.sim.recipes.config import from_dict
from fastagg.sim.runs.build import build_data, split_unlabelled
from fastagg.sim.runs.run import run

from .fake_data import load, save_writer, write_math
from .test_resume import Killed, Stop, same

KEYS = {"pretrained": "tiny", "max_length": 96, "queries": 8, "query_length": 30, "new_tokens": 4}
IGNORED = -100


@pytest.mark.parametrize(
    ("written", "wanted", "equal"),
    [
        ("3 + 4 = 7. The answer is 7", "so #### 7", True),
        ("it costs $1,200.00", "#### 1200", True),
        ("-3", "#### 3", False),
        ("7 or 8", "#### 7", False),
        ("no idea", "#### 7", False),
        ("", "", False),
    ],
)
def test_the_last_number_counts(written, wanted, equal):
    assert scoring.same_number(written, wanted) is equal


class Digits:
    """A tokenizer of single digits."""

    pad_token_id = 0

    def batch_decode(self, rows, skip_special_tokens):
        return [" ".join(str(int(token)) for token in row if int(token)) for row in rows]


class Doubling(torch.nn.Module):
    """Writes the double of a question's last token; its logits are all equal."""

    def forward(self, tokens):
        return torch.zeros(*tokens.shape, 10)

    def generate(self, tokens, mask, most, padding):
        assert mask[:, -1].all() and (tokens[mask == 0] == 0).all()  # padding lies on the left
        return torch.cat([tokens, 2 * tokens[:, -1:]], dim=1)


def test_accuracy_is_the_share_of_right_numbers_and_loss_that_of_the_solutions():
    x = torch.tensor([[5, 3, 6, 0], [4, 8, 0, 0], [1, 1, 2, 4]])
    y = torch.tensor([[IGNORED, 6, IGNORED, IGNORED], [8, IGNORED, IGNORED, IGNORED], [IGNORED, IGNORED, 4, 5]])
    accuracy, loss = scoring.FinalNumbers(Digits(), 1, batch_size=2)(Doubling(), Samples(x, y))
    assert accuracy == pytest.approx(2 / 3)  # 3 -> 6 and 4 -> 8 are right, 2 -> 4 is not 5
    assert loss == pytest.approx(torch.log(torch.tensor(10.0)).item())


@pytest.fixture
def folder(tmp_path):
    save_writer(tmp_path / "data" / "tiny")
    write_math(tmp_path / "data", rows=60, words=12)
    return tmp_path / "data"


def maths(folder, **changes):
    keywords = {**KEYS, **changes}
    return {"name": "solutions:load", "clients": 4, "dir": str(folder), **keywords}


def test_only_solutions_have_labels_and_they_are_the_next_tokens(folder):
    data = load(**maths(folder))
    assert len(data.clients) == 4 and sum(map(len, data.clients)) == 60 - 8
    for samples in (*data.clients, data.test):
        for x, y in zip(samples.x, samples.y, strict=True):
            at = (y != IGNORED).nonzero().flatten()
            assert torch.equal(y[at[:-1]], x[at[1:]])  # each label is the token that comes next
            text = data.score.tokenizer.decode(torch.cat([x[: at[0] + 1], y[at]]))
            question, _, solution = text.partition("\nAnswer:")
            assert question.startswith("Question: ") and solution.startswith("the answer ")
            assert solution.endswith("<|endoftext|>")
    some = load(**maths(folder, samples=20, test_samples=5))
    assert (sum(map(len, some.clients)), len(some.test)) == (20, 5)


def test_queries_are_kept_out_of_training_and_distilled_on(folder):
    values = values_of(folder, {"name": "FedEcho", "buffer_size": 2})
    data = load(**maths(folder))
    queries = split_unlabelled(from_dict(values, "test"), data)[1]
    assert queries.shape == (8, 30)
    assert (queries != data.text.padding).all()
    again = load(**maths(folder))
    assert torch.equal(again.unlabelled, queries)
    assert not torch.equal(load(**maths(folder), seed=1).unlabelled, queries)


def values_of(folder, algorithm):
    return {
        "name": "writer",
        "algorithm": algorithm,
        "data": maths(folder, test_samples=4, samples=24),
        "model": {"name": "solutions:writer", "pretrained": str(folder / "tiny")},
        "client": {"lr": 1e-2, "batch_size": 4, "optimizer": "adamw"},
        "delay": {"name": "size-tied"},
        "participation": {"rule": "concurrency", "concurrency": 2},
        "distill": {"lr": 1e-3, "batch_size": 4},
        "run": {"versions": 3, "evaluate_every": 1, "checkpoint_every": 0.0},
    }


def test_a_run_learns_distils_and_resumes(folder, tmp_path):
    algorithm = {"name": "FedEcho", "buffer_size": 2, "cache": "int8"}
    config = from_dict(values_of(folder, algorithm), "test")
    result = run(config, tmp_path / "whole")
    assert result.summary["distillation"]["flushes"] == 3
    assert result.rows[-1].loss < result.rows[0].loss
    with pytest.raises(Killed):
        run(config, tmp_path / "cut", Stop(3))
    run(config, tmp_path / "cut", resume="go on")
    same(tmp_path / "whole", tmp_path / "cut")


def test_the_papers_table_names_what_the_module_has():
    found = tables.load("fedecho-table5")
    assert [cell.method for cell in found.cells] == ["FedBuff", "CA2FL", "FedAC", "FADAS", "FedEcho"]
    with pytest.raises(DataError, match=r"no data in .*MathInstruct"):
        build_data(found.cells[0].config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda f: (f / "MathInstruct" / "MathInstruct.json").unlink(),
            "no data in .*expected MathInstruct/ with MathInstruct.json",
        ),
        (lambda f: (f / "gsm8k" / "test.jsonl").unlink(), "no data in .*gsm8k/ with test.jsonl"),
        (
            lambda f: (f / "MathInstruct" / "MathInstruct.json").write_text('[{"source": "a"'),
            "Instruct.json is not a readable table",
        ),
        (
            lambda f: (f / "MathInstruct" / "MathInstruct.json").write_text('[{"source": "a"}]'),
            "the table in .*MathInstruct lacks the column instruction, output",
        ),
        (lambda f: (f / "gsm8k" / "test.jsonl").write_text("{}\n"), "test.jsonl is not a readable table"),
        (lambda f: (f / "tiny" / "config.json").unlink(), "no pretrained model 'tiny'"),
    ],
)
def test_missing_and_damaged_files_are_named(tmp_path, change, message):
    pytest.importorskip("datasets")
    if "pretrained" in message:
        (tmp_path / "tiny").mkdir()
        (tmp_path / "tiny" / "config.json").write_text("{}")
    write_math(tmp_path, rows=30, words=12)
    change(tmp_path)
    with pytest.raises(DataError, match=message):
        load(**maths(tmp_path))


def test_settings_no_question_fits_are_said(folder):
    with pytest.raises(DataError, match=r"0 questions have 99 tokens \(query_length\), 8 are asked for"):
        load(**maths(folder, query_length=99))
    with pytest.raises(DataError, match="no question is shorter than max_length, 40 tokens"):
        load(**maths(folder, max_length=40))
