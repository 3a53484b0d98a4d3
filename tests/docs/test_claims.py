"""The registry of the papers' claims (docs/reproduction/claims.toml), its results and its page agree."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from .test_snippets import ROOT

pytest.importorskip("pydantic")  # the tables of the simulator

from papers import claims as claims_of

sys.path.insert(0, str(ROOT / "bench"))
import claims


def test_the_page_has_the_table_that_the_registry_and_its_results_give() -> None:
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    measured = json.loads(claims.MEASURED.read_text(encoding="utf-8"))
    assert claims.with_table(text, measured) == text
    assert "not run" not in claims.page_table(measured)
    assert "not run" in claims.page_table({})


def test_every_claim_of_the_registry_is_one_of_its_table_and_every_result_too() -> None:
    stated = {name: {claim["text"] for claim in claims_of(name)} for name in claims.tables()}
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
        lines = ["name,seed,last5_accuracy_mean,stopped"]
        lines += [f"cifar16.{name}.rate-searched,{seed},{value + seed % 2 / 1000},finished"
                  for name, value in (("fadas", 0.3), ("fedbuff", 0.32)) for seed in range(3)]  # fmt: skip
        lines[-1] = lines[-1].replace("0.32", "0.321")
        (folder / "comparison.csv").write_text("\n".join(lines))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(claims.subprocess, "run", run)
    claims.main(["run", str(tmp_path), "cifar16", "--data-dir", "D", "--set", "data.pool=1"])
    told = f"compare cifar16 --out {tmp_path}/cifar16 --seeds 3 --data-dir D --set data.pool=1"
    assert calls == [[sys.executable, "-m", "fastagg", *told.split()]]
    assert "searched, at 16x16: reversed -2.0 [-2.2, -1.9]" in capsys.readouterr().out
    monkeypatch.setattr(claims.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=2))
    with pytest.raises(SystemExit, match="did not end: cifar8-quick"):
        claims.main(["run", str(tmp_path), "cifar8-quick", "--seeds", "1"])
