"""Runs the probes of the daemon with all manners: what the scheduler's jobs and `/probe` call.

In: a target, a module, the clock, a view of the engine. Out: an `Outcome`; what was seen goes into the `ResultStore`.
Nothing here waits for a lock, a budget or a pause: whoever may not probe now gets that as the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from llm_exporter.errors import UsageError
from llm_exporter.probing.addresses import Addresses, Asker, Place
from llm_exporter.probing.manners import BackOff, EngineView, ProbeModule, is_heartbeat
from llm_exporter.probing.pool import ProbeProcessLost, Prober
from llm_exporter.probing.results import ResultStore
from llm_exporter.probing.run import Outcome, ProbeTarget, Run, Tools

# As in blackbox_exporter: so much before Prometheus gives up, the answer must be under way.
SCRAPE_TIMEOUT_MARGIN_SECONDS = 0.5


class ProbeRunner:
    """Shared by the scheduler and `/probe`, so that both see the same locks, budgets and pauses.

    Args:
        prober: the probe process.
        store: where results go.
        clock: monotonic seconds, for what happens during a run.
        wall: unix seconds, for timestamps.
        tell: told of every run that was sent, skipped, or not made because the target rests, before its lock is given back.
    """

    def __init__(
        self,
        prober: Prober,
        store: ResultStore,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        tell: Callable[[ProbeTarget, str, Outcome], None] = lambda *_: None,
    ) -> None:
        self.store = store
        self._tools = Tools(prober, store, clock, wall)
        self._addresses = Addresses()
        self._tell = tell

    def keep_only(self, wanted: Mapping[tuple[str, str], ProbeModule], urls: Mapping[str, str]) -> frozenset[str]:
        """After a reload: what is configured, by (target name, module name), and the URL of each target. What the rest showed is forgotten.

        Locks, budgets and pauses stay with the addresses, so that a target that goes and comes back is not probed twice at once.
        Returns the targets whose address is another one now.
        """
        moved = self._addresses.configure(urls)
        self.store.keep_only(wanted, moved)
        return moved

    def run(
        self,
        target: ProbeTarget,
        module_name: str,
        module: ProbeModule,
        now: float,
        view: EngineView | Callable[[], EngineView],
        *,
        until: float | None = None,
        noted: bool = True,
    ) -> Outcome:
        """One run, or the reason why not. Takes as long as its requests do.

        `now` is monotonic seconds. A callable `view` is asked again before each further request of a long run. By `until` (monotonic
        seconds) the run has ended; what it did not come to is left out. A skip is published unless `noted` is off.

        Raises:
            ProbeProcessLost: the exporter ends. A bug is raised too, after it has been noted as a failed run.
        """
        look = view if callable(view) else lambda: view
        server, place = self._addresses.find(target.name, target.url)
        self.store.register(target.name, module_name, module)
        if not server.lock.acquire(blocking=False):
            return self._busy(target, module_name, noted=noted)
        try:
            back_off = place.back_off.setdefault(_asker(target, module_name), BackOff())
            if not back_off.ready(now):
                past = self._past(target, module_name, f"resting after {back_off.failures} failures in a row")
                outcome = replace(past, resting=True)
                self._tell(target, module_name, outcome)
                return outcome
            run = Run(
                self._tools,
                target,
                module_name,
                module,
                place=place,
                ledger=server.ledger,
                look=look,
                until=until,
                noted=noted,
            )
            try:
                outcome = run.carry_out(now)
            except ProbeProcessLost:
                raise
            except Exception as error:
                outcome = run.failed("truncated", f"bug of the exporter: {type(error).__name__}")
                self._note(target, place, module_name, module, outcome)
                raise
            self._note(target, place, module_name, module, outcome)
            return outcome
        finally:
            server.lock.release()

    def _note(self, target: ProbeTarget, place: Place, module_name: str, module: ProbeModule, outcome: Outcome) -> None:
        if outcome.sent:
            ended = self._tools.clock()
            asker = _asker(target, module_name)
            place.last_run_at[asker] = ended
            place.back_off.setdefault(asker, BackOff()).note(ended, module, success=outcome.result == "success")
        self._tell(target, module_name, outcome)

    def probe_now(
        self,
        target: ProbeTarget,
        module_name: str,
        module: ProbeModule,
        now: float,
        view: EngineView | Callable[[], EngineView],
        *,
        scrape_timeout_seconds: float | None = None,
    ) -> Outcome:
        """What `/probe` answers (CONTRACT 5): a run now, the last run where it is young, or a skip. Never waits for another probe.

        Raises:
            UsageError: the module is none that `/probe` admits, or the scrape's timeout leaves no time.
        """
        if not is_heartbeat(module):
            raise UsageError(
                f"module {module_name!r}: /probe runs interval modules with one prompt length and max_tokens of at most 64 only;"
                " let the scheduler run this one"
            )
        until = None
        if scrape_timeout_seconds is not None:
            until = now + scrape_timeout_seconds - SCRAPE_TIMEOUT_MARGIN_SECONDS
            if until <= now:
                raise UsageError(f"a scrape timeout of {scrape_timeout_seconds:g} s leaves no time for a probe")
        _, place = self._addresses.find(target.name, target.url)
        last = place.last_run_at.get(_asker(target, module_name))
        if last is not None and module.interval is not None and now - last < module.interval / 2:
            past = self._past(target, module_name, "the last run is young enough")
            if past.record.success is not None:  # else a reload has forgotten it
                return past
        return self.run(target, module_name, module, now, view, until=until, noted=False)

    def _busy(self, target: ProbeTarget, module_name: str, *, noted: bool) -> Outcome:
        """Another probe of the server runs. What `/probe` asked for shows in its own answer only, not on the page."""
        result = "skipped_busy"
        if noted:
            self.store.note_skip(target.name, module_name, result)
        record = replace(self.store.last_run(target.name, module_name), last_result=result)
        return Outcome(result, sent=False, record=record, detail="another probe of this target is running")

    def _past(self, target: ProbeTarget, module_name: str, detail: str) -> Outcome:
        """The last run; `skipped_busy` where the address rests but a reload has forgotten what it showed."""
        record = self.store.last_run(target.name, module_name)
        return Outcome(record.last_result or "skipped_busy", sent=False, record=record, detail=detail)


def _asker(target: ProbeTarget, module_name: str) -> Asker:
    return Asker(target.name, target.tls, module_name)
