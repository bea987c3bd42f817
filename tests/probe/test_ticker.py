"""The thread for work off the hot path: there while there is work, and never in the way."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest
from fresh_python import python

from ws_guard.probe.ticker import Ticker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 20


@pytest.fixture
def errors() -> list[object]:
    return []


@pytest.fixture
def ticker(errors: list[object]) -> Iterator[Ticker]:
    ticker = Ticker(0.001, errors.append)
    yield ticker
    ticker.stop()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ws_guard"]


def countdown(ticks: int) -> tuple[Callable[[], bool], threading.Event, list[int]]:
    """A job that wants that many calls, an event for the last of them, and the calls."""
    calls: list[int] = []
    done = threading.Event()

    def job() -> bool:
        calls.append(len(calls))
        if len(calls) == ticks:
            done.set()
        return len(calls) < ticks

    return job, done, calls


def wait_for_no_thread() -> None:
    for thread in threads():
        thread.join(PATIENCE)
    assert threads() == []


def test_a_job_is_called_until_it_wants_no_more(ticker: Ticker) -> None:
    assert threads() == []
    job, done, calls = countdown(5)
    ticker.add(job)
    assert done.wait(PATIENCE)
    # Without work there is no thread.
    wait_for_no_thread()
    assert calls == [0, 1, 2, 3, 4]


def test_a_thread_comes_again_with_new_work(ticker: Ticker) -> None:
    for _ in range(3):
        job, done, _ = countdown(1)
        ticker.add(job)
        assert done.wait(PATIENCE)
        wait_for_no_thread()


def test_one_thread_serves_all_jobs(ticker: Ticker) -> None:
    jobs = [countdown(3) for _ in range(4)]
    for job, _, _ in jobs:
        ticker.add(job)
        assert len(threads()) <= 1
    assert all(done.wait(PATIENCE) for _, done, _ in jobs)


def test_a_job_that_fails_is_told_once_and_the_others_go_on(
    ticker: Ticker, errors: list[object]
) -> None:
    def fail() -> bool:
        raise ValueError("on purpose")

    ticker.add(fail)
    job, done, _ = countdown(5)
    ticker.add(job)
    assert done.wait(PATIENCE)
    wait_for_no_thread()
    assert [str(error) for error in errors] == ["on purpose"]


def test_stop_ends_the_thread_and_forgets_the_work(ticker: Ticker) -> None:
    job, done, calls = countdown(1_000_000)
    ticker.add(job)
    (thread,) = threads()
    ticker.stop()
    assert not thread.is_alive()
    seen = len(calls)
    assert not done.wait(0.02)
    assert len(calls) == seen


def test_a_thread_that_cannot_start_is_no_burden(
    ticker: Ticker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError):
            ticker.add(lambda: True)
    ticker.stop()
    job, done, _ = countdown(1)
    ticker.add(job)
    assert done.wait(PATIENCE)


def test_a_job_may_stop_the_ticker(ticker: Ticker) -> None:
    stopped = threading.Event()

    def stop() -> bool:
        ticker.stop()
        stopped.set()
        return True

    ticker.add(stop)
    assert stopped.wait(PATIENCE)
    wait_for_no_thread()


# Python 3.12 warns of forks beside threads, which is what this is about.
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_has_no_work_and_can_have_new(ticker: Ticker) -> None:
    ticker.add(lambda: True)
    pid = os.fork()
    if pid == 0:
        # 0: the child had no thread, its parent's job is forgotten, and a new one is done.
        before = len(threads())
        ticker.forget()
        job, done, _ = countdown(2)
        ticker.add(job)
        fine = before == 0 and done.wait(PATIENCE)
        ticker.stop()
        os._exit(0 if fine else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(threads()) == 1


@pytest.mark.parametrize("interval", ["0.0005", "3600"])
def test_an_interpreter_ends_well_under_a_live_ticker(interval: str) -> None:
    script = (
        "import atexit, time, threading\n"
        "from ws_guard.probe.ticker import Ticker\n"
        # Registered first and called last: the interpreter must not have to kill the thread.
        "atexit.register(lambda: print([each.name for each in threading.enumerate()]))\n"
        f"ticker = Ticker({interval}, print)\n"
        "ticker.add(lambda: time.sleep(0.0002) is None)\n"
        "time.sleep(0.02)\n"
        "print('the end', flush=True)\n"
    )
    for _ in range(3):
        assert python(script, PYTHONWARNINGS="error") == ["the end", "['MainThread']"]
