"""A server whose model is divided into slices on several processes, compared with one process that does the same.

    torchrun --nproc-per-node=2 examples/sharded/serve.py
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # else new processes look for the old ones' addresses
    torchrun --nproc-per-node=2 --max-restarts=9 examples/sharded/serve.py --folder state/ --kill 3

Your program drives rank 0; here a loop plays the clients. The other ranks follow. Updates are in memory that all ranks
of this host share, so they are not sent anywhere. With ``--device cuda`` every rank has its slice on a GPU.

With ``--folder`` each rank writes a log of its slice, and the server goes on from there. ``--kill 3`` lets three
processes die, one after the other. The others notice it and end, torchrun starts all again, and nothing is lost.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import fastagg


def make(params: Any, device: str = "cpu") -> fastagg.Server:
    # every update is a step, so the version says with which update to go on
    return fastagg.FADAS(params, lr=0.01, buffer_size=1, clip_norm=50.0, moments="8bit", device=device)


def trained(number: int, size: int) -> torch.Tensor:
    """In place of your client's training."""
    return torch.randn(size, generator=torch.Generator().manual_seed(number)) * 0.1


def drive(server: fastagg.Server, updates: int, killed: Path | None) -> None:
    shared = fastagg.SharedVector(server.layout.size)
    for number in range(server.version, updates):
        client = number * 3 % 4
        task = server.dispatch(client)
        shared.tensor.copy_(trained(number, server.layout.size))
        receipt = server.receive(client, shared, task.version)
        if killed is not None and killed.exists():
            seconds = time.time() - float(killed.read_text())
            print(f"update {number} is on all disks: {receipt.durable}; {seconds:.1f} s after the kill", flush=True)
            killed.unlink()


def compare(server: fastagg.Server, model: torch.nn.Module, updates: int) -> None:
    """Compare with one process."""
    alone = make(model)
    for number in range(updates):
        client = number * 3 % 4
        alone.dispatch(client)
        alone.receive(client, trained(number, server.layout.size))
    found = server.parameters()  # collected from all ranks
    same = all(torch.equal(found[name], value) for name, value in alone.parameters().items())
    for part in server.slices():
        print(f"rank {part.rank} on {part.host}: elements {part.begin:,} to {part.end:,}")
    print(f"version {server.version}; rank 0 has sent and received {server.traffic:,} bytes")
    print("equal to one process, to the bit" if same else "NOT equal to one process", flush=True)
    if not same:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=24)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--kill", type=int, default=0, metavar="TIMES")
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % max(1, torch.cuda.device_count()))
    dist.init_process_group("gloo")  # for a model whose tensors are on GPUs: "cpu:gloo,cuda:nccl"
    torch.manual_seed(0)  # the same model on every rank
    model = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    sharded = partial(fastagg.sharded, partial(make, device=arguments.device), model)
    server = sharded() if arguments.folder is None else fastagg.open(arguments.folder, sharded)
    life = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    killed = None if arguments.folder is None else arguments.folder / "killed"

    def sent(task: fastagg.Dispatch) -> None:
        """Die in the middle of the second update of a life."""
        if killed is not None and life < arguments.kill and task.version == server.version == begun + 1:
            killed.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)

    begun = server.version
    with server:
        if server.rank == 0:
            drive(server, arguments.updates, killed)
            compare(server, model, arguments.updates)
        else:
            server.follow(sent if server.rank == 1 + life % (dist.get_world_size() - 1) else None)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
