import signal
import threading

import pytest

from fastagg.sim.one.interrupt import on_ctrl_c


@pytest.fixture(autouse=True)
def usual_handler():
    """Python's own handler: a process started in the background may ignore ctrl-C from the start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_ctrl_c_asks_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with on_ctrl_c() as stop:
        assert not stop.is_set()
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_handler_is_restored_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError), on_ctrl_c():
        raise ValueError
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_run_without_a_handler():
    seen = []

    def work():
        with on_ctrl_c() as stop:
            seen.append(stop.is_set())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
