"""The command ``fastagg serve``, which serves a model over HTTP (fastagg/serve)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastagg.cli.base import command


@command()
def serve(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL.safetensors", help="What a new folder begins with; or an index.")
    ],
    folder: Annotated[Path, typer.Option("--folder", help="Keeps the state; the same command goes on from it.")],
    rule: Annotated[str, typer.Option("--rule", help="A preset, such as FedBuff or FADAS.")],
    workers: Annotated[int, typer.Option("--workers", min=1, help="How many clients there are.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the rule; may be repeated.")
    ] = None,
    parts: Annotated[int, typer.Option("--parts", min=1, help="Cut the model into parts that step apart.")] = 1,
    by_part: Annotated[
        bool, typer.Option("--by-part", help="Let each part use its own norm where a rule needs the model's.")
    ] = False,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen at; others than this machine's need tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen at.")] = 8000,
    tokens: Annotated[
        Path | None,
        typer.Option("--tokens", metavar="FILE", help="Lines of a client and its token; * is the operator."),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", metavar="FILE", help="For TLS, with --key.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="The certificate's key.")] = None,
    uploads: Annotated[int, typer.Option("--uploads", min=1, help="Updates of a part that come at a time.")] = 64,
    reading: Annotated[
        float | None,
        typer.Option(
            "--reading", metavar="MB", min=0, help="Of versions that are sent at a time; 1000, or 4 versions."
        ),
    ] = None,
    checkpoint_every: Annotated[
        float,
        typer.Option("--checkpoint-every", metavar="MB", min=1, help="Of log and uploads; the disk has thrice that."),
    ] = 1000.0,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, help="What a transfer may take, besides --slowest.")
    ] = 60.0,
    slowest: Annotated[
        float, typer.Option("--slowest", min=1, help="Bytes a second of a transfer, at least.")
    ] = 50_000.0,
) -> None:
    """Serve a model to clients over HTTP, and keep its state on the disk.

    Clients ask for the model and send updates (fastagg.clients.HttpClient). Each update counts once.
    """
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
