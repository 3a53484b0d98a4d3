"""What only a real GPU shows: vectors past 2^31 elements, streams, graphs, devices, updates from the host."""

import pytest
import torch
from support import reference

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
LONG = 2**31 + 5000  # an index of it does not fit into 32 bits


def room_for(vectors: int, size: int) -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < 4.5 * vectors * size:
        pytest.skip(f"needs {4.5 * vectors * size / 1e9:.0f} GB of GPU memory")


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = (one.cpu().contiguous().reshape(-1).view(torch.uint8) for one in (a, b))
    return torch.equal(a, b)


def test_a_step_past_two_to_the_31() -> None:
    """The vector's end has the bits of the same step on the end alone."""
    room_for(3, LONG)
    x, g = torch.zeros(LONG, device="cuda"), torch.empty(LONG, device="cuda").normal_()
    m = torch.zeros(LONG, device="cuda")
    end = LONG - 100_000
    alone = [tensor[end:].clone() for tensor in (x, g, m)]
    ops.step_(x, g, optimizer="momentum", m=m, lr=0.5)
    ops.step_(alone[0], alone[1], optimizer="momentum", m=alone[2], lr=0.5)
    assert same(x[end:], alone[0]) and same(m[end:], alone[2])
    assert int(x.count_nonzero()) == int(g.count_nonzero())


def test_norms_past_two_to_the_31() -> None:
    """The sum of whole numbers is exact, so one element too few or too many would show."""
    room_for(1, LONG)
    g = torch.ones(LONG, device="cuda")
    g[-1] = 3.0
    assert ops.measure(g).tolist()[0] == LONG + 8.0
    g[LONG - 2] = float("nan")
    assert not ops.inspect(g).finite


def test_a_cache_past_two_to_the_31() -> None:
    """Rows of a cache whose bytes, and whose later rows' elements, lie beyond the limit."""
    from fastagg.storage.cache import ClientCache

    size, slots = 2**29 + 700, 5
    room_for(4, size)
    cache = ClientCache(size, slots, "int8", torch.device("cuda", 0), 3)
    update, total = torch.empty(size, device="cuda").normal_(), torch.zeros(size, device="cuda")
    ops.cached_step_(None, update, cache=cache, write=slots - 1, client=4, sum=total, leaving=0.0)
    row = ops.read_row(cache, slots - 1)
    assert float((row - update).abs().max()) < float(update.abs().max()) / 127 * 1.01
    assert float((total - row).abs().max()) <= 1e-6


@pytest.mark.parametrize("rows, classes", [(1, 7), (300, 1000), (64, 50_257)])
def test_distillation(rows: int, classes: int) -> None:
    """Near float64, and the same from run to run."""
    z, teachers = torch.randn(rows, classes) * 4, torch.randn(rows, classes) * 4
    found = []
    for _ in range(2):
        logits = z.cuda().requires_grad_()
        targets = ops.soft_targets(teachers.cuda(), scale=0.5)
        loss = ops.distillation_loss(logits, targets)
        loss.backward()
        found.append((loss.detach(), logits.grad, *targets))
    assert all(same(a, b) for a, b in zip(*found, strict=True))
    there = ops.soft_targets(teachers.double(), scale=0.5)
    expected, gradient = reference.distillation(z.double(), *there, None, 0.2, 0.8)
    assert float(found[0][0]) == pytest.approx(float(expected), rel=1e-5)
    torch.testing.assert_close(found[0][1].cpu().double(), gradient.double(), rtol=1e-4, atol=1e-7)
    assert torch.equal(found[0][3].cpu(), there.labels)


def test_two_streams_at_once() -> None:
    """Norms on two streams, each of its own vector, a thousand times: their blocks do not share scratch memory."""
    vectors = [torch.full((D,), float(value), device="cuda") for value in (1, 2)]
    streams = [torch.cuda.Stream() for _ in vectors]
    torch.cuda.synchronize()
    sums: list[list[torch.Tensor]] = [[], []]
    for _ in range(1000):
        for which in (0, 1):
            with torch.cuda.stream(streams[which]):
                sums[which].append(ops.measure(vectors[which]))
    torch.cuda.synchronize()
    for which, value in ((0, 1.0), (1, 4.0)):
        assert {float(one[0]) for one in sums[which]} == {value * D}


def test_two_graphs_at_once() -> None:
    """Captured norms have scratch of their own, and may be replayed side by side."""
    vectors = [torch.full((D,), float(value), device="cuda") for value in (1, 2)]
    streams, graphs, sums = [torch.cuda.Stream() for _ in vectors], [], []
    for vector, stream in zip(vectors, streams, strict=True):
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            sums.append(ops.measure(vector))
        graphs.append(graph)
    for _ in range(200):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    assert [float(one[0]) for one in sums] == [D, 4.0 * D]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_devices() -> None:
    """A server on each device while the other one is current: the same bits, and the current device does not change."""
    found = []
    for index in (0, 1):
        with torch.cuda.device(1 - index):
            device = torch.device("cuda", index)
            server = fastagg.FADAS(torch.zeros(D, device=device), buffer_size=2)
            for client in range(4):
                server.dispatch(client)
                generator = torch.Generator().manual_seed(client)
                server.receive(client, torch.randn(D, generator=generator).to(device))
            assert torch.cuda.current_device() == 1 - index
            found.append(server.flat)
    assert same(*found)


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
    with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
        ops.step_(x, g, optimizer="amsgrad", lr=0.1, m=m, v=v, vhat=w)
    for _ in range(3):
        graph.replay()
        ops.step_(plain[0], g, optimizer="amsgrad", lr=0.1, m=plain[1], v=plain[2], vhat=plain[3])
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


def test_tensors_on_two_devices() -> None:
    with pytest.raises(DTypeMismatch, match="cuda"):
        ops.step_(torch.zeros(4), torch.zeros(4, device="cuda"), optimizer="sgd", lr=1.0)
