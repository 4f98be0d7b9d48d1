"""The way of one sample: page → series → reading → memory → signals → the exporter's page. One object per target.

`take` is the whole way for one scrape, good or bad; the daemon's threads, `replay`, `diagnose` and the tests all call it, with their own
clock. Nothing here waits, fetches or sleeps.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from llm_exporter.config.model import Target
from llm_exporter.daemon.hardware_view import HardwareView
from llm_exporter.engines import normalise
from llm_exporter.errors import ParseError
from llm_exporter.expose import targets
from llm_exporter.expose.page import Page
from llm_exporter.expose.targets import TargetStatus
from llm_exporter.readings import Slot
from llm_exporter.signals.derive import PERSISTENT, derive
from llm_exporter.signals.model import TargetView
from llm_exporter.signals.ramps import EVIDENCE_SECONDS
from llm_exporter.signals.verdict import VerdictKeeper
from llm_exporter.sources.engine import Failed, Fetched
from llm_exporter.sources.exposition import Page as SeriesPage
from llm_exporter.sources.exposition import PageParser, Series
from llm_exporter.state.store import EngineStore

log = logging.getLogger("llm_exporter.target")

# A page whose own timestamps are older than this speaks of the past (CONTRACT 6.2, status stale).
PAGE_AGE_LIMIT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Settings that decide how long a page stays good."""

    interval: float = 5.0
    timeout: float = 10.0
    stall_after: float = 30.0

    @property
    def good_for(self) -> float:
        """Seconds for which the series of a good page may be shown (CONTRACT 6)."""
        return max(2 * self.interval, self.timeout)


@dataclass(slots=True)
class Pipeline:
    """One target from page to page.

    Args:
        target: its configuration.
        page: where families are published.
        timing: interval, timeout and stall time.
        wall: wall clock, for timestamps only.
        extra_labels: names of labels that any target configures (one info metric has one set).
        process_lives: whether the target's process is known to live; None where that cannot be known.
        hardware: (monotonic time, seconds to look back) → what GPUs and host say about this target.
    """

    target: Target
    page: Page
    timing: Timing
    wall: Callable[[], float]
    extra_labels: tuple[str, ...] = ()
    process_lives: Callable[[], bool | None] = lambda: None
    hardware: Callable[[float, float], HardwareView] = lambda _, __: HardwareView()
    status: TargetStatus = field(default_factory=TargetStatus)
    store: EngineStore = field(default_factory=EngineStore)
    view: TargetView | None = None
    last_page: SeriesPage | None = None
    _verdict: VerdictKeeper = field(default_factory=VerdictKeeper)
    _parser: PageParser = field(default_factory=PageParser)
    _normaliser: normalise.Normaliser = field(default_factory=normalise.Normaliser)
    _told: set[str] = field(default_factory=set)
    _retired: bool = False
    _publishing: threading.Lock = field(default_factory=threading.Lock)

    def take(self, scraped: Fetched | Failed, now: float) -> TargetStatus:
        """Takes one scrape of monotonic time `now` all the way; returns and publishes the target's new status."""
        before = self.status
        fresh = False
        if isinstance(scraped, Fetched):
            try:
                fresh = self._read(scraped, now)
            except ParseError as error:
                scraped = Failed(error.reason, error.detail, error.hint, scraped.duration_seconds)
            except Exception:
                # a bug, which the caller logs; the target must not stand there as if all were well
                self._fail(Failed("parse", "the exporter failed to read the page, its log says where", "", scraped.duration_seconds))
                self.publish(now, fresh=False)
                raise
        if isinstance(scraped, Failed):
            self._fail(scraped)
        self._log_change(before)
        # a slow answer is as old as its last byte, or it would be too old as soon as it is there
        self.publish(now, fresh=fresh, read_at=now + scraped.duration_seconds)
        return self.status

    def publish(self, now: float, *, fresh: bool, read_at: float | None = None) -> None:
        """Derives and publishes. Without a fresh page only what outlives it is left. `read_at`: when the page was complete."""
        seen = self.hardware(now, self.store.span_seconds(EVIDENCE_SECONDS))
        view = TargetView(
            self.target,
            now,
            self.store,
            fresh,
            self.status.state,
            self.timing.stall_after,
            seen.gpu,
            seen.host,
            seen.foreign_memory,
            seen.gpu_works,
            seen.missing,
        )
        view = replace(view, decision=self._verdict.decide(view))
        self.view = view
        families = derive(view)
        name = self.target.name
        engine = [family for family in families if family.metric.name not in PERSISTENT]
        lasting = [family for family in families if family.metric.name in PERSISTENT]
        with self._publishing:
            if not self._retired:
                self.page.put(f"{name}/engine", engine, until=(now if read_at is None else read_at) + self.timing.good_for)
                self.page.put(name, targets.families(self.target, self.status, self.extra_labels) + lasting)

    def retire(self, *, replaced: bool = False) -> None:
        """Publishes nothing more, however late a scrape in flight comes; takes everything off the page unless a successor replaces it."""
        with self._publishing:
            self._retired = True
            if not replaced:
                self.page.drop(f"{self.target.name}/engine")
                self.page.drop(self.target.name)

    def series_behind(self, page: SeriesPage) -> dict[Slot, tuple[Series, ...]]:
        """The series of a page that was read which each number is made of: the streamed ones only, say, or one of several ranks."""
        return self._normaliser.trace(page.shape)

    # -- one scrape ----------------------------------------------------------------------------------------------------------------

    def _read(self, fetched: Fetched, now: float) -> bool:
        series = self._parser.parse(fetched.body, fetched.content_type)
        reading = self._normaliser.read(series, self.wall())
        self.last_page = series  # after reading: whoever traces it finds its plan made
        if reading is not None and self.target.engine not in ("auto", reading.engine):
            reading = None
        good = TargetStatus(
            up=True,
            at=self.wall(),
            last_good_at=self.wall(),
            duration_seconds=fetched.duration_seconds,
            samples=len(series.values),
            engine_version=self.status.engine_version,
        )
        if reading is None:
            other = normalise.detect(series.shape)
            detail = (
                f"the page is {other}'s, the configuration says {self.target.engine}" if other else "the page holds no engine's metrics"
            )
            hint = "remove `engine`, or give the right address" if other else normalise.missing_engine_hint(series.shape)
            self.status = replace(good, reason="no_engine_metrics", detail=detail, hint=hint, engine_version="")
            return False
        if self.status.engine not in ("unknown", reading.engine):
            good = replace(good, engine_version="")
        self._tell_anomalies(reading.anomalies)
        restarts = self.store.counted.restarts
        self.store.add(reading, now)
        if self.store.counted.restarts != restarts:
            good = replace(good, engine_version="")  # perhaps another release: ask again
        self.status = replace(good, engine=reading.engine, state=self._state(), identity_unstable=self.store.identity_unstable)
        old = reading.page_age_seconds is not None and reading.page_age_seconds > PAGE_AGE_LIMIT_SECONDS
        return not old

    def _state(self) -> str:
        merged = self.store.latest
        assert merged is not None
        awake = [
            merged.published[position]
            for (_, name), by_label in merged.table.scalars.items()
            if name == "awake"
            for position in by_label.values()
        ]
        return "sleeping" if awake and max(awake) == 0 else "ready"

    def _fail(self, failed: Failed) -> None:
        loading = failed.reason == "http_503" or (failed.reason == "refused" and self.process_lives() is True)
        self.status = replace(
            self.status,
            up=False,
            reason=failed.reason,
            detail=failed.detail,
            hint=failed.hint,
            at=self.wall(),
            duration_seconds=failed.duration_seconds,
            state="loading" if loading else "unknown",
        )

    def _tell_anomalies(self, found: Mapping[str, int]) -> None:
        """Each kind of impossible input is logged once; llm_input_anomalies_total counts them all."""
        if fresh := found.keys() - self._told:
            self._told |= fresh
            what = ", ".join(f"{found[kind]} {kind}" for kind in sorted(fresh))
            log.warning(
                "the page holds impossible input, which is left out or put right: %s",
                what,
                extra={"target": self.target.name, "source": "engine"},
            )

    def _log_change(self, before: TargetStatus) -> None:
        now = self.status
        if (before.up, before.reason) == (now.up, now.reason):
            return
        where = {"target": self.target.name, "source": "engine"}
        if not now.up:
            log.warning(
                "target is down: %s", "; ".join(filter(None, (now.detail or now.reason, now.hint))), extra={**where, "reason": now.reason}
            )
        elif now.reason:
            log.warning("target answers, but its engine is unknown: %s %s", now.detail, now.hint, extra={**where, "reason": now.reason})
        else:
            log.info("target is up", extra={**where, "engine": now.engine})
