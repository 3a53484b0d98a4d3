"""The command ``fastagg serve``, which serves a model over HTTP (fastagg/serve)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastagg.cli.base import command


@command()
def serve(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL.safetensors", help="Model for a new folder: a file, or an index of files.")
    ],
    folder: Annotated[Path, typer.Option("--folder", help="Folder of the state. The same command resumes.")],
    rule: Annotated[str, typer.Option("--rule", help="Name of a preset, such as FedBuff or FADAS.")],
    workers: Annotated[int, typer.Option("--workers", min=1, help="Number of clients, for rules that need it.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the rule. Repeatable.")
    ] = None,
    parts: Annotated[int, typer.Option("--parts", min=1, help="Number of parts of the model.")] = 1,
    by_part: Annotated[
        bool, typer.Option("--by-part", help="Allow rules that need an update's norm. Each part then uses its own.")
    ] = False,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen at. Needs --tokens if others can reach it.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen at.")] = 8000,
    tokens: Annotated[
        Path | None,
        typer.Option("--tokens", metavar="FILE", help="Each line has an id of a client, or * for all, and a token."),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", metavar="FILE", help="Certificate for TLS. Needs --key.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Private key of the certificate.")] = None,
    uploads: Annotated[int, typer.Option("--uploads", min=1, help="Most uploads of a part's updates at a time.")] = 64,
    reading: Annotated[
        float | None,
        typer.Option(
            "--reading", metavar="MB", min=0, help="MB of versions sent at a time. Default: 1000, at least 4 versions."
        ),
    ] = None,
    checkpoint_every: Annotated[
        float,
        typer.Option(
            "--checkpoint-every",
            metavar="MB",
            min=1,
            help="MB of log and uploads between checkpoints. The folder may take thrice that.",
        ),
    ] = 1000.0,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, help="A transfer of n bytes may take --seconds + n/--slowest seconds.")
    ] = 60.0,
    slowest: Annotated[
        float, typer.Option("--slowest", min=1, help="Least speed, in bytes a second. See --seconds.")
    ] = 50_000.0,
) -> None:
    """Serve a model to clients over HTTP, and keep its state on the disk.

    Clients ask for the model and send updates (fastagg.clients.HttpClient). Each update counts once."""
    from fastagg._checks import parse_change
    from fastagg.serve.start import serve as start

    start(
        model, rule, dict(map(parse_change, changes or ())), workers, parts, folder, host=host, port=port,
        tokens=tokens, certificate=certificate, key=key, by_part=by_part,
        checkpoint_every=int(1e6 * checkpoint_every),
        limits={
            "uploads": uploads, "reading": None if reading is None else 1e6 * reading, "seconds": seconds,
            "slowest": slowest,
        },
    )  # fmt: skip
