"""The curves of docs/performance.md. A processor is drawn when its results hold the rows for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from records import Row

Devices = Mapping[str, tuple[dict[str, str], list[Row]]]

# Operations with a curve, and the bytes per parameter that one call touches: what has to fit into a cache.
CURVES = {"amsgrad": 20, "accumulate": 8, "ace int8": 16}
PEERS = {"fastagg": "C0", "torch.optim fused": "C1", "torch.compile": "C2", "torch add_": "C3", "plain C++ loop": "C4"}
STREAMS = {"copy": "copy", "triad": "triad", "in place": "in place"}


@dataclass(frozen=True)
class Figure:
    """What it is called, says and needs, and how it is drawn."""

    name: str
    caption: str
    rows: Callable[[Sequence[Row]], list[Row]]
    paint: Callable[[Any, Sequence[Row], dict[str, str]], None]
    panels: Callable[[Sequence[Row]], int]


def names(devices: Devices) -> list[str]:
    """Files that :func:`draw` writes."""
    return [name for name, _ in captions(devices)]


def captions(devices: Devices) -> list[tuple[str, str]]:
    """File and caption of every figure that the results are enough for."""
    found = []
    for figure in FIGURES:
        if drawn := [device for device, (_, rows) in devices.items() if figure.rows(rows)]:
            found.append((f"{figure.name}.png", f"{figure.caption} {', '.join(drawn)}."))
    return found


def draw(devices: Devices, folder: Path) -> None:
    """Write the figures as PNG: a row of panels for every processor."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    for figure in FIGURES:
        wanted = {device: found for device, (_, rows) in devices.items() if (found := figure.rows(rows))}
        if not wanted:
            continue
        panels = max(figure.panels(rows) for rows in wanted.values())
        size = (4.4 * max(panels, 1.5), 4.0 * len(wanted))
        canvas, axes = plt.subplots(len(wanted), panels, figsize=size, layout="constrained", squeeze=False)
        for line, (device, rows) in zip(axes, wanted.items(), strict=True):
            used = figure.panels(rows)
            figure.paint(line[:used], rows, devices[device][0])
            for axis in line[:used]:
                axis.set_title(f"{axis.get_title()}\n{device}", fontsize=10)
            for axis in line[used:]:
                axis.set_axis_off()
        canvas.savefig(folder / f"{figure.name}.png", dpi=110)
        plt.close(canvas)


def _swept(rows: Sequence[Row]) -> list[Row]:
    """Operations with more than two sizes, and the streams beside them, on the most threads."""
    most = max((row.threads for row in rows), default=0)
    kept = [row for row in rows if row.threads == most and row.seconds]
    operations = [op for op in CURVES if len({row.size for row in kept if row.operation == op}) > 2]
    return [row for row in kept if row.operation in operations or (operations and row.operation == "roofline")]


def _operations(rows: Sequence[Row]) -> list[str]:
    return [op for op in CURVES if any(row.operation == op for row in rows)]


def _time(axes: Any, rows: Sequence[Row], _caches: dict[str, str]) -> None:
    for axis, operation in zip(axes, _operations(rows), strict=True):
        for candidate, color in PEERS.items():
            _line(axis, _pick(rows, operation, candidate), lambda s, _row: 1e3 * s, candidate, color)
        axis.set(xscale="log", yscale="log", xlabel="parameters d", ylabel="time per call, ms", title=operation)
        axis.legend()


def _bandwidth(axes: Any, rows: Sequence[Row], caches: dict[str, str]) -> None:
    for axis, operation in zip(axes, _operations(rows), strict=True):
        for candidate, color in PEERS.items():
            points = _pick(rows, operation, candidate)
            if points:
                _line(axis, points, lambda s, row: row.bytes * row.size / s / 1e9, candidate, color)
        sizes = {row.size for row in rows if row.operation == operation}
        best = [
            (size, max(r.gbps for r in rows if r.operation == "roofline" and r.size == size and _limit(r) and r.gbps))
            for size in sorted(sizes)
            if any(r.operation == "roofline" and r.size == size for r in rows)
        ]
        axis.plot(*zip(*best, strict=True), color="0.5", ls="--", label="best stream (copy, triad, in place)")
        top = axis.get_ylim()[1] * 1.45
        for level, size in caches.items():
            at = _bytes(size) / CURVES[operation]
            if min(sizes) < at < max(sizes):
                axis.axvline(at, color="0.75", lw=1, zorder=0)
                axis.text(at, 0.02 * top, f" {level}", color="0.4", ha="left", va="bottom", fontsize=9)
        axis.set(xscale="log", ylim=(0, top), xlabel="parameters d", ylabel="GB/s (counted bytes)", title=operation)
        axis.legend(loc="upper right", fontsize=8)


def _limit(row: Row) -> bool:
    return row.candidate.split(":")[0] in STREAMS


def _scaling_rows(rows: Sequence[Row]) -> list[Row]:
    own = [row for row in rows if row.operation in CURVES and row.candidate == "fastagg" and row.seconds]
    single = {(row.operation, row.size) for row in own if row.threads == 1}
    kept = [row for row in own if (row.operation, row.size) in single]
    return kept if any(row.threads > 1 for row in kept) else []


def _scaling(axes: Any, rows: Sequence[Row], _caches: dict[str, str]) -> None:
    (axis,) = axes
    most = max(row.threads for row in rows)
    for operation in _operations(rows):
        one = {row.size: row.seconds[1] for row in rows if (row.operation, row.threads) == (operation, 1)}
        for threads in sorted({row.threads for row in rows} - {1}):
            many = {row.size: row.seconds[1] for row in rows if (row.operation, row.threads) == (operation, threads)}
            points = [(size, one[size] / many[size]) for size in sorted(one.keys() & many.keys())]
            axis.plot(*zip(*points, strict=True), marker="o", ms=3, label=f"{operation}, {threads} threads")
    axis.axhline(1, color="0.75", lw=1, zorder=0)
    axis.set(
        xscale="log", ylim=(0, most * 1.35), xlabel="parameters d", ylabel="times as fast as on one thread",
        title="Scaling with threads",
    )  # fmt: skip
    axis.legend(loc="upper left", fontsize=8, ncols=2)


def _arrivals(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.operation == "arrivals" and row.seconds]


def _sizes(rows: Sequence[Row]) -> list[int]:
    return sorted({row.size for row in rows})


def _clients(axes: Any, rows: Sequence[Row], _caches: dict[str, str]) -> None:
    for axis, size in zip(axes, _sizes(rows), strict=True):
        for candidate in dict.fromkeys(row.candidate for row in rows):
            points = sorted(
                (row.clients, 1 / row.seconds[1])
                for row in rows
                if (row.candidate, row.size) == (candidate, size) and row.seconds
            )
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", ms=4, label=candidate)
        axis.set(xscale="log", xlabel="clients", ylabel="arrivals per second", title=f"ACE, d = {size:,}")
        axis.set_ylim(0, axis.get_ylim()[1] * 1.45)
        axis.legend(loc="upper right", fontsize=7, ncols=2)


def _formats(axes: Any, rows: Sequence[Row], _caches: dict[str, str]) -> None:
    (axis,) = axes
    kept = {row.candidate.split(", ")[1].split()[0]: row.per_client for row in rows if _own(row) and row.per_client}
    bars = axis.bar(list(kept), list(kept.values()), color="C0", width=0.6)
    axis.bar_label(bars, [f"{value:.3f}\n{value * 11.2:.1f} MB at 11.2 M" for value in kept.values()], fontsize=8)
    axis.set(ylabel="bytes per parameter and client", title="A client's row", ylim=(0, 1.25 * max(kept.values())))
    axis.set_xlabel("format of the client cache")


def _own(row: Row) -> bool:
    return row.candidate.startswith("fastagg")


def _pick(rows: Sequence[Row], operation: str, candidate: str) -> list[Row]:
    found = [row for row in rows if (row.operation, row.candidate) == (operation, candidate) and row.seconds]
    return sorted(found, key=lambda row: row.size)


def _line(axis: Any, rows: Sequence[Row], value: Callable[..., float], label: str, color: str) -> None:
    """Medians as a line, p20 to p80 as a band."""
    if not rows:
        return
    sizes = [row.size for row in rows]
    low, middle, high = ([value(row.seconds[q], row) for row in rows if row.seconds is not None] for q in range(3))
    axis.plot(sizes, middle, marker="o", ms=3, color=color, label=label)
    axis.fill_between(sizes, low, high, color=color, alpha=0.2, lw=0)


def _bytes(size: str) -> int:
    return int(size.rstrip("KMG")) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1], 1)


def _one(_rows: Sequence[Row]) -> int:
    return 1


def _each(rows: Sequence[Row]) -> int:
    return len(_operations(rows))


def _each_size(rows: Sequence[Row]) -> int:
    return len(_sizes(rows))


FIGURES = (
    Figure("time", "Time per call against the number of parameters, all cores:", _swept, _time, _each),
    Figure(
        "bandwidth",
        "Bandwidth against the number of parameters, all cores; a line marks where what one call touches fills a "
        "core's cache (L3: the machine's):",
        _swept, _bandwidth, _each,
    ),
    Figure("threads", "Speed-up over one thread:", _scaling_rows, _scaling, _one),
    Figure("clients", "Arrivals per second against the number of clients:", _arrivals, _clients, _each_size),
    Figure("formats", "What the server keeps for each client, by the format of its cache:", _arrivals, _formats, _one),
)  # fmt: skip
