"""The registry of the papers' claims (docs/reproduction/claims.toml), its results and its page agree."""

import json
import sys

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
