"""DaemonThread and LoopThread: in order, failures delivered, never in the way of the interpreter's end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import CancelledError

import pytest

from rollenv.executor import DaemonThread, LoopThread


@pytest.fixture
def thread() -> DaemonThread:
    return DaemonThread("worker")


def test_calls_run_in_order_on_the_named_thread(thread: DaemonThread) -> None:
    ran: list[int] = []
    futures = [thread.submit(lambda i=i: (ran.append(i), threading.current_thread().name)[1]) for i in range(20)]
    assert {future.result(60) for future in futures} == {"worker"}
    assert ran == list(range(20))
    thread.stop()


def test_a_failing_call_delivers_its_error_and_the_next_one_runs(thread: DaemonThread) -> None:
    def fail() -> None:
        raise KeyError("here")

    def leave() -> None:
        sys.exit("not an Exception either")

    with pytest.raises(KeyError, match="here"):
        thread.submit(fail).result(60)
    with pytest.raises(SystemExit):
        thread.submit(leave).result(60)
    assert thread.submit(lambda: 7).result(60) == 7
    thread.stop()


def test_a_cancelled_call_never_runs(thread: DaemonThread) -> None:
    gate, ran = threading.Event(), []
    first = thread.submit(gate.wait)
    cancelled = thread.submit(lambda: ran.append("cancelled"))
    after = thread.submit(lambda: ran.append("after"))
    assert cancelled.cancel()
    gate.set()
    assert first.result(60)
    after.result(60)
    assert ran == ["after"]
    with pytest.raises(CancelledError):
        cancelled.result(0)
    thread.stop()


def test_stop_runs_what_is_queued_and_refuses_the_rest(thread: DaemonThread) -> None:
    gate = threading.Event()
    thread.submit(gate.wait)
    queued = thread.submit(lambda: "ran")
    thread.stop(timeout=0)
    with pytest.raises(RuntimeError, match="thread 'worker' was stopped"):
        thread.submit(lambda: None)
    gate.set()
    assert queued.result(60) == "ran"
    thread.stop()
    thread.stop()
    assert not thread._thread.is_alive()


def test_stop_may_be_called_from_the_thread_itself(thread: DaemonThread) -> None:
    assert thread.submit(thread.stop).result(60) is None
    thread._thread.join(60)
    assert not thread._thread.is_alive()


def test_a_result_is_not_kept_alive_by_the_waiting_thread(thread: DaemonThread) -> None:
    import weakref

    class Big:
        pass

    kept = weakref.ref(thread.submit(Big).result(60))
    thread.submit(lambda: None).result(60)
    assert kept() is None
    thread.stop()


def test_a_hung_call_does_not_keep_the_interpreter_alive() -> None:
    code = """
import threading
from rollenv.executor import DaemonThread, LoopThread

begun = threading.Event()
def hang():
    begun.set()
    threading.Event().wait()

thread = DaemonThread("hung")
thread.submit(hang)
assert begun.wait(60)
thread.stop(timeout=0.01)
print("end of main")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "end of main\n"), done.stderr


def test_a_loop_serves_other_threads_side_by_side_and_refuses_once_it_is_stopped() -> None:
    thread = LoopThread("loop")
    meeting = asyncio.Event()

    async def wait() -> str:
        await meeting.wait()
        return threading.current_thread().name

    async def let_go() -> None:
        meeting.set()

    waiting = [thread.submit(wait()) for _ in range(3)]
    thread.submit(let_go()).result(60)
    assert [future.result(60) for future in waiting] == ["loop"] * 3
    thread.stop()
    thread.stop()
    with pytest.raises(RuntimeError, match="was stopped"):
        thread.submit(let_go())


def test_who_cancels_the_future_cancels_the_work() -> None:
    thread, ended = LoopThread("loop"), threading.Event()

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    future = thread.submit(for_ever())
    thread.submit(asyncio.sleep(0)).result(60)
    future.cancel()
    assert ended.wait(60)
    thread.stop()
