"""What only a real GPU shows: streams, graphs, updates on their way from the host, no waiting."""

from __future__ import annotations

import pytest
import torch

import fastagg
from fastagg import ops
from fastagg._build import native
from fastagg.errors import DTypeMismatch
from fastagg.storage import staging
from fastagg.storage.pieces import Pieces

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.cuda,
    pytest.mark.skipif(not (torch.cuda.is_available() and native.cuda_architectures), reason="needs a GPU"),
]
D = 300_000


def test_runs_on_the_callers_stream() -> None:
    x, g = torch.zeros(D, device="cuda"), torch.ones(D, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # whatever does not wait for this sees zeros
        g.mul_(2)
        ops.step_(x, g, optimizer="sgd", lr=1.0)
    stream.synchronize()
    assert torch.equal(x, torch.full_like(x, 2.0))


def test_a_step_in_a_cuda_graph() -> None:
    x, m, v, w = (torch.zeros(D, device="cuda") for _ in range(4))
    g = torch.randn(D, device="cuda")
    plain = [tensor.clone() for tensor in (x, m, v, w)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        ops.judge(g)
        with torch.cuda.graph(graph, stream=stream):
            verdict = ops.judge(g, clip_norm=1.0)
            ops.step_(x, g, optimizer="amsgrad", lr=0.1, m=m, v=v, vhat=w, verdict=verdict)
    for _ in range(3):
        graph.replay()
        verdict = ops.judge(g, clip_norm=1.0)
        ops.step_(plain[0], g, optimizer="amsgrad", lr=0.1, m=plain[1], v=plain[2], vhat=plain[3], verdict=verdict)
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip((x, m, v, w), plain, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_update_from_the_host(dtype: torch.dtype) -> None:
    """More chunks than the pinned buffer has slots, in pieces, and the caller's memory is free again at once."""
    host = torch.randn(70_000_000 if dtype is torch.float32 else 9_000_001).to(dtype)
    kept = host.clone()
    sent = staging.upload(Pieces([host[:5], host[5:1_000_003], host[1_000_003:]]), torch.device("cuda", 0))
    host.zero_()
    assert torch.equal(torch.as_tensor(sent.owners[0]).cpu(), kept)


def test_pieces_of_several_types_from_the_host() -> None:
    parts = [torch.randn(1000), torch.randn(77).half(), torch.randn(3).bfloat16()]
    sent = staging.upload(Pieces(parts), torch.device("cuda", 0))
    assert torch.equal(sent.owners[0].cpu(), torch.cat([part.float() for part in parts]))


def test_deferred_receive_does_not_wait() -> None:
    server = fastagg.ACE(torch.zeros(D, device="cuda"), lr=0.1, num_clients=2, cache="int8", warmup="partial",
                         validate="deferred")  # fmt: skip
    update = torch.randn(D, device="cuda")
    for client in (0, 1):
        server.dispatch(client)
        server.receive(client, update)
    server.dispatch(0)
    done = torch.cuda.Event()
    torch.cuda._sleep(1_000_000_000)
    receipt = server.receive(0, update)
    done.record()
    assert not done.query()  # it came back while the device was still asleep
    assert receipt.kept and receipt.update_norm == pytest.approx(float(update.norm()), rel=1e-5)


def test_tensors_on_two_devices() -> None:
    with pytest.raises(DTypeMismatch, match="cuda"):
        ops.step_(torch.zeros(4), torch.zeros(4, device="cuda"), optimizer="sgd", lr=1.0)
