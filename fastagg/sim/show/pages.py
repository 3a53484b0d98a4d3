"""``report.html`` of a run or a comparison: tables, pictures, settings, machine and versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastagg import page
from fastagg.facts import facts
from fastagg.sim.many.groups import Group
from fastagg.sim.recipes.config import to_toml
from fastagg.sim.show.findings import Findings


def comparison_page(groups: Sequence[Group], found: Findings, pictures: Mapping[str, bytes], title: str = "") -> str:
    """Return one HTML page about ``groups``, what they showed, and PNG pictures. A single run is one group."""
    blocks = [(page.paragraph if place else page.heading)(text) for place, text in enumerate(found.sentences)]
    blocks += [page.table(sheet) for sheet in found.sheets]
    blocks += [page.picture(name, png) for name, png in pictures.items()]
    blocks += [page.paragraph(note) for note in found.notes]
    blocks += [page.table(found.times), page.heading("Settings and machine")]
    blocks += [page.text(f"{group.label}: config.toml", to_toml(group.results[0].config)) for group in groups]
    blocks.append(page.settings("Machine and versions", facts()))
    seeds = sorted({result.config.seed for group in groups for result in group.results})
    note = f"Seeds: {', '.join(map(str, seeds))}."
    return page.page(title or ", ".join(dict.fromkeys(group.method for group in groups)), blocks, note)
