"""Signals of the daemon: none is lost and none blocks, however many come; and the end comes in any case."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from llm_exporter.daemon.ending import Signals

# The kernel gives a signal to another thread while the main thread has one pending: many are needed to see it.
STORM = """
import os, signal, threading, time
from llm_exporter.daemon.ending import Signals
signals = Signals()
signals.watch()
def send():
    for number in range(20000):
        os.kill(os.getpid(), signal.SIGHUP)
        if number % 3 == 0:
            time.sleep(0.0001)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=send).start()
reloads = 0
while signals.reload_or_end():
    reloads += 1
signals.stopped()
print("reloads", reloads > 0)
"""


@pytest.fixture
def handlers() -> Iterator[None]:
    numbers = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_the_end_is_heard_through_a_storm_of_reloads() -> None:
    ended = subprocess.run([sys.executable, "-c", STORM], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "reloads True\n", "")


def test_reloads_that_came_meanwhile_are_one_and_the_end_goes_before_them() -> None:
    signals = Signals()
    for wish in (True, True, True):
        signals._wishes.put(wish)
    assert signals.reload_or_end() is True
    assert signals._wishes.empty()
    for wish in (True, True, False):
        signals._wishes.put(wish)
    assert signals.reload_or_end() is False


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_each_signal_is_heard(number: signal.Signals) -> None:
    signals = Signals(leave=lambda _: None, end_seconds=0.0)
    signals.watch()
    signal.raise_signal(signal.SIGHUP)
    assert signals.reload_or_end() is True
    signal.raise_signal(number)
    assert signals.reload_or_end() is False


@pytest.mark.usefixtures("handlers")
def test_an_end_that_takes_too_long_is_cut_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    left: SimpleQueue[int] = SimpleQueue()
    signals = Signals(left.put, end_seconds=0.01)
    signals.watch()
    signal.raise_signal(signal.SIGHUP)
    assert left.empty()  # no end was asked for
    signal.raise_signal(signal.SIGTERM)
    assert left.get(timeout=10) == 0
    assert "the end takes more than 0.01 s" in caplog.text


@pytest.mark.usefixtures("handlers")
def test_after_the_stop_a_job_that_hangs_is_not_waited_for_either(caplog: pytest.LogCaptureFixture) -> None:
    left: SimpleQueue[int] = SimpleQueue()
    signals = Signals(left.put, end_seconds=1000.0, after_stop_seconds=0.01)
    signals.watch()
    signal.raise_signal(signal.SIGTERM)
    signals.stopped()
    assert left.get(timeout=10) == 0
    assert caplog.text == ""
