"""The signals of the daemon, and an end that comes in any case.

In: SIGHUP, SIGTERM, SIGINT. Out: for `cli/serve.py`, whether to reload or to end; and when an end takes too long (a reload that waits for a
slow list of targets, a job that hangs, which the interpreter would wait for), the process is ended as it is: there is nothing to save.

Python calls its handlers in the main thread, but the kernel may give a signal to any thread, and then nothing wakes a main thread that
waits: of signals that come close together the last one, SIGTERM, was not heard. The byte of `set_wakeup_fd` is written by whichever it is.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

log = logging.getLogger("llm_exporter.serve")

# An orchestrator kills after ten seconds at the earliest.
END_SECONDS = 8.0
# Once all is stopped, only jobs that hang are left.
AFTER_STOP_SECONDS = 1.0


class Signals:
    """What was asked of the process.

    Args:
        leave: ends the process as it is; tests have another.
        end_seconds: from the first SIGTERM or SIGINT until then.
        after_stop_seconds: from `stopped` until then.
    """

    def __init__(
        self,
        leave: Callable[[int], object] = os._exit,
        *,
        end_seconds: float = END_SECONDS,
        after_stop_seconds: float = AFTER_STOP_SECONDS,
    ) -> None:
        self._leave, self._end_seconds, self._after_stop_seconds = leave, end_seconds, after_stop_seconds
        self._wishes: SimpleQueue[bool] = SimpleQueue()  # True: reload, False: end
        self._stopped = threading.Event()

    def watch(self) -> None:
        """From now on signals are taken here. For the main thread, once in the life of a process."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # else the signal would do what it does by default
        threading.Thread(target=self._listen, args=(reading,), daemon=True, name="signals").start()

    def reload_or_end(self) -> bool:
        """Waits for the next wish: True is a reload, False the end. Several reloads that were asked for meanwhile are one."""
        wish = self._wishes.get()
        try:
            while wish:
                wish = self._wishes.get_nowait()
        except Empty:
            pass
        return wish

    def stopped(self) -> None:
        """All that can be stopped is stopped: the process ends now."""
        self._stopped.set()

    def _listen(self, reading: int) -> None:
        while set(os.read(reading, 65536)) <= {signal.SIGHUP}:
            self._wishes.put(True)
        self._wishes.put(False)
        if self._stopped.wait(self._end_seconds):
            threading.Event().wait(self._after_stop_seconds)
        else:
            log.warning("the end takes more than %g s: what still runs is left as it is", self._end_seconds)
        self._leave(0)
