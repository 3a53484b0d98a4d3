"""The registry of the papers' claims (docs/reproduction/claims.toml), its results and its page agree.

claims.md: what was tried of the pages' sentences. Its pages and tests are there."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from .test_snippets import ROOT

pytest.importorskip("pydantic")  # the tables of the simulator

from fastagg.sim.recipes import tables

sys.path.insert(0, str(ROOT / "bench"))
import claims


def test_the_page_has_the_table_that_the_registry_and_its_results_give() -> None:
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    measured = json.loads(claims.MEASURED.read_text(encoding="utf-8"))
    assert claims.with_table(text, measured) == text
    assert "not run" not in claims.page_table(measured)
    assert "not run" in claims.page_table({})


def test_every_claim_of_the_registry_is_one_of_its_table_and_every_result_too() -> None:
    stated = {name: {claim.text for claim in tables.load(name).claims} for name in claims.tables()}
    for row in claims.registry()["rows"]:
        for table, claim, _ in row["tests"]:
            assert claim in stated[table]
    for table, results in json.loads(claims.MEASURED.read_text(encoding="utf-8")).items():
        assert set(results) == stated[table]


def test_tables_run_with_their_seeds_on_the_data_and_at_the_size_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[list[str]] = []

    def run(command: list[str], check: bool) -> SimpleNamespace:
        calls.append(command)
        folder = Path(command[command.index("--out") + 1])
        folder.mkdir()
        (folder / "claims.md").write_text(
            "| claim | difference, 95% interval | seeds | verdict |\n| --- | ---: | ---: | ---: |\n"
            "| FADAS is above FedBuff, both rates searched | -2.0 [-3.0, -1.0] | 3 | reversed |\n"
        )
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(claims.subprocess, "run", run)
    claims.main(["run", str(tmp_path), "cifar16", "--data-dir", "D", "--set", "data.pool=1"])
    told = f"compare cifar16 --out {tmp_path}/cifar16 --seeds 3 --data-dir D --set data.pool=1"
    assert calls == [[sys.executable, "-m", "fastagg", *told.split()]]
    assert "searched, at 16x16: reversed -2.0 [-3.0, -1.0]" in capsys.readouterr().out
    monkeypatch.setattr(claims.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=2))
    with pytest.raises(SystemExit, match="did not end: cifar8-quick"):
        claims.main(["run", str(tmp_path), "cifar8-quick", "--seeds", "1"])


LINES = re.findall(
    r"^\| (.+?) \| (.+) \| (.+?) \| (\w+) \|$",
    (Path(__file__).parent / "claims.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)[1:]


def test_there_are_250_and_none_is_false_or_misleading() -> None:
    assert len(LINES) >= 250 and {result for *_, result in LINES} == {"true"}
    assert len({(page, sentence) for page, sentence, *_ in LINES}) == len(LINES)


def test_pages_and_tests_that_they_name_are_there() -> None:
    lost = [page for page, *_ in LINES if not (ROOT / page).is_file() and not page.startswith("fastagg")]
    for file, name in re.findall(r"`([\w/]+\.py)::(\w+)`", "\n".join(how for _, _, how, _ in LINES)):
        path = ROOT / "tests" / file
        if not path.is_file() or f"def {name}(" not in path.read_text(encoding="utf-8"):
            lost.append(f"{file}::{name}")
    assert not lost
