"""A server whose model is divided into slices on several processes, compared with one process that does the same.

    torchrun --nproc-per-node=2 examples/sharded/serve.py

Your program drives rank 0; here a loop plays the clients. The other ranks follow. Updates are in memory that all ranks
of this host share, so they are not sent anywhere. With ``--device cuda`` every rank has its slice on a GPU.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import fastagg


def make(params: Any, device: str = "cpu") -> fastagg.Server:
    return fastagg.FADAS(params, lr=0.01, buffer_size=3, clip_norm=50.0, moments="8bit", device=device)


def drive(server: fastagg.Server, model: torch.nn.Module, updates: int) -> None:
    alone = make(model)
    size = server.layout.size
    vectors = [fastagg.SharedVector(size) for _ in range(4)]  # one for every client
    for client in range(4):
        server.dispatch(client)
        alone.dispatch(client)
    for number in range(updates):
        client = number * 3 % 4
        generator = torch.Generator().manual_seed(number)
        vectors[client].tensor.copy_(torch.randn(size, generator=generator) * 0.1)  # in place of your client's training
        receipt = server.receive(client, vectors[client])
        assert receipt == alone.receive(client, vectors[client].tensor)
        server.dispatch(client)
        alone.dispatch(client)
    sent = server.traffic / updates
    found = server.parameters()  # collected from all ranks
    same = all(torch.equal(found[name], value) for name, value in alone.parameters().items())
    for part in server.slices():
        print(f"rank {part.rank} on {part.host}: elements {part.begin:,} to {part.end:,}")
    print(f"version {server.version} after {updates} updates; {sent:,.0f} bytes each between ranks")
    print("equal to one process, to the bit" if same else "NOT equal to one process")
    if not same:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=24)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % max(1, torch.cuda.device_count()))
    dist.init_process_group("gloo")  # for a model whose tensors are on GPUs: "cpu:gloo,cuda:nccl"
    torch.manual_seed(0)  # the same model on every rank
    model = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    server = fastagg.sharded(partial(make, device=arguments.device), model)
    if server.rank == 0:
        with server:
            drive(server, model, arguments.updates)
    else:
        server.follow()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
