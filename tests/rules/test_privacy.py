"""Private rules: clipping and noise as the formulas say, noise that never repeats, and what is refused."""

import copy
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import noise as spec
from torch import Tensor

import fastagg
from fastagg.rules.privacy import NoiseKey

pytestmark = pytest.mark.kernel

KEY = NoiseKey(range(32))
PAIR = fastagg.BLT((0.3, 0.2), (0.95, 0.4))


def updates(count: int, size: int, seed: int = 0) -> list[Tensor]:
    """Updates of norms about 0.1 to 10."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(size, generator=generator) for _ in range(count)]
    return [one / one.norm() * 10.0 ** (2.0 * torch.rand(1, generator=generator) - 1.0) for one in made]


def made(size: int, privacy: fastagg.Gaussian, buffer: int | None = 3, **more: Any) -> fastagg.Server:
    direction = fastagg.Buffer(buffer, privacy=privacy, **more.pop("direction", {}))
    server = fastagg.Server(torch.zeros(size), direction, more.pop("optimizer", fastagg.SGD(1.0)), **more)
    server._draw_with(KEY)
    return server


def give(server: fastagg.Server, given: list[Tensor], first: int = 0) -> None:
    for client, update in enumerate(given, first):
        server.dispatch(client)
        server.receive(client, update)


def key_of(server: fastagg.Server, version: int) -> bytes:
    return spec.step_key(KEY, server.incarnation, version)


def noise_of(server: fastagg.Server, size: int) -> Tensor:
    """The noise of one more step, by itself."""
    before = server.flat.clone()
    first = 1000 * server.version
    give(server, [torch.zeros(size)] * server.direction.size, first)
    return server.flat - before


def test_chacha20_is_the_one_of_the_rfc() -> None:
    # RFC 8439, 2.3.2: counter 1 and a nonce of 96 bits, whose first word is the counter's upper half here
    words = spec.chacha20(bytes(range(32)), np.array([1 | 0x09000000 << 32], np.uint64), 0x4A000000)
    assert words[:, 0].astype("<u4").tobytes().hex().startswith("10f1e7e4d13b5915500fdd1fa32071c4")


@pytest.mark.parametrize("size", [1, 1023, 1024, 5001, 300_000])
def test_a_step_is_the_clipped_mean_and_its_noise(size: int) -> None:
    privacy = fastagg.Gaussian(0.7, 0.5)
    server, given = made(size, privacy), updates(6, size)
    give(server, given)
    expected = torch.zeros(size, dtype=torch.float64)
    for version in (1, 2):
        total = sum(one.double() * min(1.0, 0.5 / float(one.norm())) for one in given[3 * version - 3 : 3 * version])
        expected += (total + 0.7 * 0.5 * spec.normals(key_of(server, version), size)) / 3
    # small normal numbers are coarse in fp32: there are few numbers between u and 1
    torch.testing.assert_close(server.flat.double(), expected, rtol=1e-5, atol=1e-4)
    assert float((server.flat.double() - expected).abs().mean()) < 1e-6


@pytest.mark.parametrize(
    "optimizer",
    [
        fastagg.Adam(0.1, eps=0.1), fastagg.AMSGrad(0.1, eps=0.1), fastagg.Yogi(0.1, eps=0.1), fastagg.Momentum(0.1),
        fastagg.Adagrad(0.1, eps=0.1), fastagg.SGD(0.1, weight_decay=0.1),
        fastagg.AMSGrad(0.1, eps=0.1, moments="8bit"),
    ],
    ids=repr,
)  # fmt: skip
def test_every_optimizer_steps_along_the_noisy_mean(optimizer: fastagg.Optimizer) -> None:
    # with a small eps, m / sqrt(v) of a mean near zero has the mean's relative error, which has no bound
    size, privacy = 2500, fastagg.Gaussian(1.0, 0.5)
    private = made(size, privacy, optimizer=optimizer)
    plain = fastagg.Server(torch.zeros(size), fastagg.Buffer(1), optimizer)
    given = updates(6, size)
    give(private, given)
    for version in (1, 2):
        total = sum(one.double() * min(1.0, 0.5 / float(one.norm())) for one in given[3 * version - 3 : 3 * version])
        mean = (total + 0.5 * spec.normals(key_of(private, version), size)) / 3
        give(plain, [mean.float()], version)
    near = 1e-2 if "8bit" in repr(optimizer) else 1e-4  # codes round by what is drawn from the same place
    torch.testing.assert_close(private.flat, plain.flat, rtol=near, atol=near)


@pytest.mark.parametrize("how", ["grace", "number", "early", "deterministic"])
def test_a_round_has_its_noise_however_it_ends(how: str) -> None:
    size, given, privacy = 3000, updates(4, 3000), fastagg.Gaussian(1.0, 0.5)
    settings = {"grace": {"at_least": 1, "grace": 1e6}, "number": {"normalize": 5.0}}.get(how, {})
    server = made(size, privacy, None if how == "early" else 4, direction=settings)
    if how == "deterministic":
        rounds = fastagg.Cohort(4, privacy=privacy)
        server = fastagg.Server(torch.zeros(size), rounds, fastagg.SGD(1.0), deterministic=True)
        server._draw_with(KEY)
    for client in range(4):
        server.dispatch(client)
    for client in (2, 0, 3, 1):
        server.receive(client, given[client])
    assert how != "early" or server.close_round() is not None
    total = sum(update.double() * min(1.0, 0.5 / float(update.norm())) for update in given)
    expected = (total + 0.5 * spec.normals(key_of(server, 1), size)) / (5.0 if how == "number" else 4)
    torch.testing.assert_close(server.flat.double(), expected, rtol=1e-5, atol=1e-4)


# -- statistics


def draws(steps: int, size: int, privacy: fastagg.Gaussian | None = None) -> Tensor:
    server = made(size, privacy or fastagg.Gaussian(1.0, 1.0), buffer=1)
    return torch.stack([noise_of(server, size) for _ in range(steps)]).double()


def test_noise_is_normal_and_independent_over_elements_and_steps() -> None:
    steps, size = 40, 65_536
    found = draws(steps, size)
    count = found.numel()
    assert abs(float(found.mean())) < 5 / math.sqrt(count)
    assert abs(float(found.square().mean()) - 1) < 5 * math.sqrt(2 / count)
    assert abs(float(found.pow(3).mean())) < 5 * math.sqrt(15 / count)
    assert abs(float(found.pow(4).mean()) - 3) < 5 * math.sqrt(96 / count)
    for beyond in (1.0, 2.0, 3.0, 4.0):
        share = math.erfc(beyond / math.sqrt(2))
        assert abs(float((found.abs() > beyond).double().mean()) - share) < 5 * math.sqrt(share / count)
    between = found @ found.T / size - torch.eye(steps)
    assert float(between.fill_diagonal_(0).abs().max()) < 6 / math.sqrt(size)
    for apart in (1, 2, 63, 64, 512, 1024):  # neighbours, the other number of a pair, the same place of a block
        product = found[:, :-apart] * found[:, apart:]
        assert abs(float(product.mean())) < 5 / math.sqrt(product.numel())


def test_correlated_noise_is_the_inverse_of_the_matrix_times_independent_noise() -> None:
    size, steps = 3000, 9
    privacy = fastagg.Gaussian(0.5, 2.0, correlation=PAIR, max_participations=2, min_separation=3)
    server = made(size, privacy, buffer=2)
    found = torch.stack([noise_of(server, size) for _ in range(steps)])
    drawn = torch.stack([spec.normals(key_of(server, version), size) for version in range(1, steps + 1)])
    expected = spec.correlated(drawn, PAIR.omega, PAIR.theta) * (0.5 * 2.0 * PAIR.sensitivity(2, 3) / 2)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("apart", [1, 3, 40])
def test_the_sensitivity_is_the_norm_of_the_sum_of_columns(times: int, apart: int) -> None:
    for pair in (PAIR, fastagg.BLT((0.5,), (0.9,)), fastagg.BLT((0.1, 0.2, 0.05), (0.999, 0.6, 0.3))):
        column = np.array([pair.coefficient(t) for t in range(20_000)])
        total = np.zeros_like(column)
        for k in range(times):
            total[k * apart :] += column[: len(column) - k * apart]
        assert pair.sensitivity(times, apart) == pytest.approx(float(np.linalg.norm(total)), rel=1e-9)
        assert np.all(np.diff(column) <= 0)


# -- adaptive clipping


def test_the_clipping_norm_follows_the_quantile_as_the_paper_says() -> None:
    size, clip = 1500, fastagg.AdaptiveClip(0.6, initial=0.3, rate=0.4, count_noise=2.0)
    server, given = made(size, fastagg.Gaussian(1.0, clip), buffer=4), updates(24, size)
    give(server, given)
    norm, spent = 0.3, (1.0**-2 - 2.0**-2) ** -0.5
    expected = torch.zeros(size, dtype=torch.float64)
    for version in range(1, 7):
        mine, key = given[4 * version - 4 : 4 * version], key_of(server, version)
        total = sum(one.double() * min(1.0, norm / float(one.norm())) for one in mine)
        expected += (total + spent * norm * spec.normals(key, size)) / 4
        within = sum(float(one.norm()) <= norm for one in mine)
        norm *= math.exp(-0.4 * ((within + 2.0 * spec.count_normal(key)) / 4 - 0.6))
    torch.testing.assert_close(server.flat.double(), expected, rtol=1e-5, atol=1e-5)
    assert server._running.extension.state.native.clip == pytest.approx(norm, rel=1e-5)


# -- noise never repeats, and a log repeats it


@pytest.mark.parametrize("more", [{}, {"correlation": PAIR, "max_participations": 50}], ids=["alone", "correlated"])
def test_a_checkpoint_that_is_restored_twice_has_new_noise_each_time(more: Any, tmp_path: Path) -> None:
    server = made(2000, fastagg.Gaussian(1.0, 1.0, **more), buffer=1)
    noise_of(server, 2000)
    state = server.state_dict()
    found = [noise_of(server, 2000)]
    for _ in range(2):
        server.load_state_dict(state)
        found += [noise_of(copy.deepcopy(server), 2000), noise_of(server, 2000)]
    for k, one in enumerate(found):
        for other in found[:k]:
            deviation = PAIR.sensitivity(50, 1) if more else 1.0
            assert float((one - other).std()) == pytest.approx(math.sqrt(2) * deviation, rel=0.1)  # past noise is one


def test_two_servers_have_two_keys() -> None:
    one, other = (fastagg.FedBuff(torch.zeros(2000), privacy=fastagg.Gaussian(1.0, 1.0)) for _ in range(2))
    assert one._parts.key != other._parts.key and "key" not in repr(one)
    assert repr(one._parts.key) == "<a key>"


@pytest.mark.parametrize("correlated", [False, True])
def test_a_checkpoint_has_no_key_and_no_past_noise(correlated: bool, tmp_path: Path) -> None:
    more: Any = {"correlation": PAIR, "max_participations": 9} if correlated else {}
    server = made(2000, fastagg.Gaussian(1.0, 1.0, **more), buffer=1)
    noise_of(server, 2000)
    noise = noise_of(server, 2000)
    server.save(tmp_path / "it.pt")
    assert bytes(KEY) not in (tmp_path / "it.pt").read_bytes()
    held = server.state_dict()["direction"]
    for name in ("noise_0", "noise_1") if correlated else ():
        sums = held[name].nan_to_num(0.0, 0.0, 0.0).clamp(-9, 9)
        assert abs(float(torch.corrcoef(torch.stack([sums, noise]))[0, 1])) < 0.15
    if not correlated:
        assert fastagg.load(tmp_path / "it.pt").version == 2  # it goes on with a new key
        return
    with pytest.raises(fastagg.CheckpointError, match="needs the key of the server"):
        fastagg.load(tmp_path / "it.pt")


RULES = {
    "alone": fastagg.Gaussian(1.0, 0.5),
    "adaptive": fastagg.Gaussian(1.0, fastagg.AdaptiveClip(0.5, initial=0.4, count_noise=2.0)),
    "correlated": fastagg.Gaussian(1.0, 0.5, correlation=PAIR, max_participations=9),
}


@pytest.mark.parametrize("name", RULES)
def test_a_log_gives_the_same_noise_and_a_later_life_another_one(name: str, tmp_path: Path) -> None:
    def make() -> fastagg.Server:
        return fastagg.FedBuff(torch.zeros(1500), buffer_size=3, privacy=RULES[name])

    given = updates(12, 1500)
    with fastagg.open(tmp_path / "a", make) as server:
        key = tmp_path / "a" / "noise-key"
        assert key.stat().st_mode & 0o777 == 0o600 and key.read_bytes() == bytes(server._parts.key)
        give(server, given[:4])
        server.checkpoint()
        give(server, given[4:7], 4)
        plain = made(1500, RULES[name])
        plain._draw_with(server._parts.key)
        plain._engine.begin_incarnation(0, server.incarnation)
        give(plain, given[:7])
        assert torch.equal(plain.flat, server.flat)  # durable equals not
        flat = server.flat.clone()
    with fastagg.open(tmp_path / "a", make) as server:
        assert torch.equal(server.flat, flat)
        give(server, given[7:10], 7)
        give(plain, given[7:10], 7)
        assert not torch.equal(plain.flat, server.flat)  # another incarnation
        flat = server.flat.clone()
    audited = fastagg.audit(tmp_path / "a")
    assert audited["same"] and audited["version"] == 3
    with fastagg.open(tmp_path / "a", make) as server:
        assert torch.equal(server.flat, flat)
    for wrong in (bytes(32), None, b"short"):
        key.unlink(missing_ok=True)
        if wrong is not None:
            key.write_bytes(wrong)
        with pytest.raises(fastagg.CheckpointError, match="noise-key"):
            fastagg.open(tmp_path / "a", make)


def test_a_copy_of_a_folder_makes_the_same_versions_with_other_noise(tmp_path: Path) -> None:
    def make() -> fastagg.Server:
        return fastagg.FedBuff(torch.zeros(1500), buffer_size=1, privacy=fastagg.Gaussian(1.0, 1.0))

    with fastagg.open(tmp_path / "a", make) as server:
        give(server, updates(2, 1500))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = []
    for name in ("a", "b"):
        with fastagg.open(tmp_path / name, make) as server:
            assert server.version == 2
            found.append(noise_of(server, 1500))
    assert float((found[0] - found[1]).std()) == pytest.approx(math.sqrt(2), rel=0.1)


# -- what is spent


def test_what_is_spent_is_the_accountants_own_figure() -> None:
    accounting = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    for noise, steps, settings in ((1.3, 5, {}), (4.0, 40, {"max_participations": 7}), (2.0, 9, {"min_separation": 4})):
        server = made(4, fastagg.Gaussian(noise, 1.0, **settings), buffer=1)
        for _ in range(steps):
            noise_of(server, 4)
        times = min(-(-steps // settings.get("min_separation", 1)), settings.get("max_participations", steps))
        accountant = pld.PLDAccountant()
        accountant.compose(accounting.SelfComposedDpEvent(accounting.GaussianDpEvent(noise), times))
        assert server.privacy_spent(1e-6) == pytest.approx(accountant.get_epsilon(1e-6), rel=2e-3)
    pair = fastagg.Gaussian(2.0, 1.0, correlation=PAIR, max_participations=3, min_separation=2)
    accountant = pld.PLDAccountant()
    accountant.compose(accounting.GaussianDpEvent(2.0))  # all participations together are one mechanism
    assert pair.epsilon(5, 1e-6) == pytest.approx(accountant.get_epsilon(1e-6), rel=2e-3)
    assert 0 == pair.epsilon(0, 1e-6) < pair.epsilon(1, 1e-6) < pair.epsilon(3, 1e-6) < pair.epsilon(5, 1e-6)
    assert pair.epsilon(5, 1e-6) == pair.epsilon(10**9, 1e-6)
    assert fastagg.Gaussian(0.0, 1.0).epsilon(3, 1e-6) == math.inf


# What is charged must bound every test between two neighbours: a client's clipped updates, and zeros in their place.
CHARGED = {
    "alone": (fastagg.Gaussian(0.9, 1.0), 10, (0,)),
    "several steps": (fastagg.Gaussian(2.0, 0.5), 3, (0, 1, 2)),
    "adaptive": (fastagg.Gaussian(0.9, fastagg.AdaptiveClip(initial=1.0)), 10, (0,)),
    "adaptive, its own count": (fastagg.Gaussian(2.0, fastagg.AdaptiveClip(count_noise=2.5)), 5, (0, 1, 2)),
    "adaptive, apart": (fastagg.Gaussian(1.0, fastagg.AdaptiveClip(), min_separation=2), 40, (0, 2)),
    "correlated": (
        fastagg.Gaussian(1.5, 1.0, correlation=PAIR, max_participations=3, min_separation=2), 2, (0, 2, 4),
    ),
}  # fmt: skip


def released(server: fastagg.Server, answers: list[Tensor], client: int | None = 0) -> tuple[Tensor, float]:
    """What a step tells: its sum by the clipping norm, and how many more than all were not clipped. ``client``: who
    gives the first answer; None: somebody else."""
    direction, native = server.direction, server._running.extension.state.native
    clip, before, first = native.clip, server.flat.double(), 1000 * server.version + 1
    if client is not None:
        give(server, answers[:1], client)
        answers = answers[1:]
    give(server, answers, first)
    moved, adaptive = math.log(native.clip / clip), direction.privacy.clip_norm
    count = -moved / adaptive.rate + adaptive.quantile - 1 if isinstance(adaptive, fastagg.AdaptiveClip) else 0.0
    return (server.flat.double() - before) * direction.size / clip, direction.size * count


def likelihood_ratio(privacy: fastagg.Gaussian, size: int, when: tuple[int, ...], steps: int) -> tuple[Any, float]:
    """The weights of sums (by the clipping norm) and of counts in the best linear test of whether the client took part
    in the steps `when`, and how many standard deviations apart its means are."""
    server = made(1024, privacy, size)
    drawn = spec.normals(key_of(server, 1), 1024)
    seen, count = released(server, [torch.zeros(1024)] * size)
    noise, count_noise = float(seen @ drawn / (drawn @ drawn)), count / spec.count_normal(key_of(server, 1))
    eye = torch.eye(steps, dtype=torch.float64)
    pair = privacy.correlation
    mixing = eye if pair is None else spec.correlated(eye, pair.omega, pair.theta)
    shift = eye[list(when)].sum(0)
    sums = torch.linalg.solve(noise**2 * mixing @ mixing.T, shift)
    counts = -shift / count_noise**2 if count_noise else 0 * shift
    return torch.stack([sums, counts]), math.sqrt(float(sums @ shift - counts @ shift))


def above(x: float) -> float:
    return 0.5 * math.erfc(x / math.sqrt(2))


@pytest.mark.parametrize("name", CHARGED)
def test_no_linear_test_between_neighbours_has_more_power_than_was_charged(name: str) -> None:
    pytest.importorskip("dp_accounting")
    privacy, size, when = CHARGED[name]
    steps = 400 if privacy.correlation is not None else when[-1] + 1
    _, apart = likelihood_ratio(privacy, size, when, steps)
    for delta in (1e-9, 1e-6, 1e-3, 0.1):
        epsilon = privacy.epsilon(steps, delta)
        # power(t) <= e^epsilon * size(t) + delta for every threshold t
        spent = max(above(t - apart) - math.exp(epsilon) * above(t) for t in np.linspace(-9, 9 + apart, 20_001))
        assert 0.98 * delta < spent < 1.001 * delta  # and no more noise than that takes


def test_settings_go_through_a_checkpoint_and_a_recipes_table_and_stay_the_servers_own(tmp_path: Path) -> None:
    other = fastagg.FedBuff(torch.zeros(4), privacy=fastagg.Gaussian(1.0, 0.25))
    other.load_state_dict(fastagg.FedBuff(torch.zeros(4), privacy=fastagg.Gaussian(1.0, 1.0)).state_dict())
    assert other._running.extension.state.native.clip == 0.25
    for privacy in RULES.values():
        server = fastagg.FADAS(torch.zeros(4), privacy=privacy)
        server.save(tmp_path / "it.pt")
        assert fastagg.load(tmp_path / "it.pt").direction == server.direction
    table = {"noise_multiplier": 1.0, "clip_norm": {"quantile": 0.5, "count_noise": 2.0}}
    server = fastagg.FedBuff(torch.zeros(4), privacy=table)
    assert server.direction.privacy.clip_norm == fastagg.AdaptiveClip(0.5, count_noise=2.0)
