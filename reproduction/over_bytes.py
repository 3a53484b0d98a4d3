"""Test accuracy over the bytes that clients sent, of tables whose methods differ in ``encoding``: docs/encoding.md.

fastagg compare reproduction/encoding.toml --seeds 3 --data-dir FOLDER --out runs/cifar
python reproduction/lora.py FOLDER/shakespeare/input.txt base.pt
fastagg compare reproduction/encoding-lora.toml --out runs/lora
python reproduction/over_bytes.py FIGURES.json PICTURE.png "CIFAR-10 at 8x8=runs/cifar" "LoRA=runs/lora"

Without folders it draws the figures again.
"""

from __future__ import annotations

import csv
import json
import sys
import tomllib
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fastagg import drawing

LAST = 5  # evaluations whose mean is the accuracy at the end
COLOURS = {"fp32": "#222222", "int8": "#1f77b4", "int4": "#17becf", "sign": "#d95f02", "top-k 10%": "#2ca02c",
           "top-k 1%": "#9467bd"}  # fmt: skip


def read(folder: Path) -> dict[str, list[list[list[float]]]]:
    """Return the points of each seed by method: bytes and accuracy in percent."""
    found: dict[str, list[list[list[float]]]] = {}
    for path in sorted(folder.glob("*/seed*/summary.json")):  # of runs that are complete
        how = tomllib.loads((path.parent / "config.toml").read_text())["encoding"]
        name = {"none": "fp32", "topk": f"top-k {100 * how['share']:g}%"}.get(how["format"], how["format"])
        with open(path.parent / "metrics.csv") as file:
            rows = [[float(row["bytes_up"]), round(100 * float(row["accuracy"]), 2)] for row in csv.DictReader(file)]
        found.setdefault(name + ", feedback" * how["feedback"], []).append(rows)
    return found


def draw(figures: dict[str, dict[str, list[list[list[float]]]]], path: Path) -> None:
    figure = Figure(figsize=(8, 3.7), layout="constrained")
    for axes, (title, methods) in zip(figure.subplots(1, len(figures), squeeze=False)[0], figures.items(), strict=True):
        for method in sorted(methods, key=lambda name: [*COLOURS].index(name.partition(",")[0])):
            seeds = np.array(methods[method])  # [seeds, points, 2]
            at, found = seeds[:, 1:, 0].mean(0) / 1e6, seeds[:, 1:, 1]
            x = np.append(at[:-LAST], at[-1])
            y = np.append(found[:, :-LAST], found[:, -LAST:].mean(1, keepdims=True), axis=1)
            name, _, feedback = method.partition(",")
            once = name not in ("sign", "top-k 10%", "top-k 1%")
            line = {"color": COLOURS[name], "linestyle": "-" if once or feedback else (0, (2, 1.2)), "linewidth": 1.4}
            axes.plot(x, y.mean(0), label=name if once else f"{name}, {'with' if feedback else 'no'} feedback", **line)
            if len(y) > 1:
                spread = y.std(0, ddof=1)
                axes.fill_between(
                    x, y.mean(0) - spread, y.mean(0) + spread, color=COLOURS[name], alpha=0.12, linewidth=0
                )
        drawing.logarithmic(axes, "x")
        drawing.tidy(axes)
        axes.set_title(f"{title}, {len(seeds)} seed{'s' * (len(seeds) > 1)}", fontsize=drawing.TEXT)
        axes.set_xlabel("megabytes from clients")
    figure.axes[0].set_ylabel("test accuracy (%)")
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=7.5
    )
    drawing.save(figure, path)


def main(file: str, picture: str, *folders: str) -> None:
    if folders:
        read_ = {title: read(Path(folder)) for title, _, folder in (one.partition("=") for one in folders)}
        Path(file).write_text(json.dumps(read_).replace("]]], ", "]]],\n") + "\n")
    figures = json.loads(Path(file).read_text())
    for title, methods in figures.items():
        for method, seeds in methods.items():
            ends = np.array(seeds)[:, -LAST:, 1].mean(1)
            spread = f"±{ends.std(ddof=1):.1f}" if len(ends) > 1 else ""
            print(f"{title}: {method}: {ends.mean():.1f}{spread}% with {np.array(seeds)[:, -1, 0].mean() / 1e6:.2f} MB")
    draw(figures, Path(picture))


if __name__ == "__main__":
    main(*sys.argv[1:])
