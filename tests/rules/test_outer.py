"""The rules of asynchronous large-model training: look-ahead, tokens and speeds. Their steps: tests/fuzz."""

import pytest
import torch

import fastagg

# -- the look-ahead ----------------------------------------------------------------------------------------------------


def test_a_version_is_sent_as_one_vector_and_the_model_steps_in_place() -> None:
    server = fastagg.HeLoCo(torch.zeros(5000), lr=1.0, momentum=0.5)
    receipt = server.receive_model(server.dispatch(0), torch.ones(5000))
    first, second = server.dispatch(0), server.dispatch(1)
    assert receipt.version == first.version == 1 and first.flat.data_ptr() == second.flat.data_ptr()
    assert float(first.flat[0]) == 1.5 and float(server.flat[0]) == 1.25
    assert server.memory()["versions"] == 20_000  # what is sent; the model is not kept
    server.receive(0, torch.zeros(5000))
    assert float(first.flat[0]) == 1.5 and server.dispatch(0).version == 2
    server.lr = 0.0
    assert torch.equal(server.dispatch(2).flat, server.flat)


def test_a_look_ahead_that_could_leave_its_range_is_refused_and_nothing_is_sent() -> None:
    server = fastagg.HeLoCo(torch.zeros(4), lr=1.0, momentum=0.5)
    server.receive_model(server.dispatch(0), torch.full((4,), 1e15))
    server.lr = 1e30
    before = server.state_dict()["tasks"]
    with pytest.raises(fastagg.UpdateTooLarge, match="look_ahead"):
        server.dispatch(1)
    assert str(server.state_dict()["tasks"]) == str(before)
    server.lr = 1.0
    assert server.dispatch(1).version == 1


# -- ages, tokens, speeds ----------------------------------------------------------------------------------------------


def test_local_steps_follow_the_speeds_that_were_told() -> None:
    server = fastagg.AsyncDiLoCo(torch.zeros(2), fastest_steps=50)
    assert server.dispatch("new").local_steps == 50
    assert server.dispatch("a", speed=10.0).local_steps == 50
    assert server.dispatch("b", speed=3.0).local_steps == 15
    assert server.dispatch("c", speed=0.01).local_steps == 1
    assert server.dispatch("d", speed=20).local_steps == 50
    task = server.dispatch("b")  # told before
    assert task.local_steps == 7 and server.receive("b", torch.ones(2), task=task.id).applied
    server.forget("d")
    assert server.dispatch("b").local_steps == 15
    for client, speed in ((0.5, 100.0), ("e", -1.0)):  # what is refused is not told
        with pytest.raises(fastagg.FastaggError):
            server.dispatch(client, speed=speed)  # type: ignore[arg-type]
    assert server.dispatch("b").local_steps == 15


@pytest.mark.parametrize("wrong", [1e30, 3e38, 1e-38])
@pytest.mark.parametrize("first", [True, False])
def test_one_wrong_speed_leaves_the_others_at_least_a_tenth_of_the_steps(wrong: float, first: bool) -> None:
    server = fastagg.AsyncDiLoCo(torch.zeros(2), fastest_steps=1000)
    if first:
        server.dispatch("wrong", speed=wrong)
    speeds = {"a": 2.0, "b": 4.0, "c": 8.0, "d": 4.0, "e": 2.5}
    for client, speed in speeds.items():
        server.dispatch(client, speed=speed)
    assert 1 <= server.dispatch("wrong", speed=wrong).local_steps <= 1000
    for client, speed in speeds.items():
        steps = server.dispatch(client).local_steps
        # a median of others' speeds stays between theirs; without the wrong one it would be speed/8
        assert 1000 * speed / 40 - 1 <= steps <= 1000 * speed / 8


def test_speeds_take_no_memory_when_their_lease_is_over() -> None:
    server = fastagg.AsyncDiLoCo(torch.zeros(2), fastest_steps=50, lease=1e-9)
    for client in range(100):
        server.dispatch(client, speed=1.0)
    assert server._pace is not None and len(server._pace.speeds) < 3
