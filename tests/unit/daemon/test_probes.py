"""Probes in the daemon: news of those that fail, and URLs that `/probe` is given."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.probing import FakeProber
from llm_exporter.config.model import Authorization, Config, ProbeModule, Secret, Target, Web
from llm_exporter.daemon.pipeline import Pipeline, Timing
from llm_exporter.daemon.probe_health import ProbeHealth
from llm_exporter.daemon.probes import Probes, engine_view
from llm_exporter.daemon.published import declared
from llm_exporter.expose import probes
from llm_exporter.expose.page import Page
from llm_exporter.probing.run import Outcome, ProbeTarget
from llm_exporter.sources.engine import Failed, Fetched
from llm_exporter.sources.probe import ProbeReading
from llm_exporter.sources.probe_record import ProbeRecord

TARGET = ProbeTarget("chat", "http://a")
PAIR = ("chat", "short")
SHORT = ProbeModule(interval=30.0, timeout=20.0, prompt_tokens=(64,), model="m")


class News:
    """A health on a clock of ours, and what it says."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "llm_exporter.probes")
        self._caplog = caplog
        self.now = 1_800_000_000.0
        self.health = ProbeHealth(lambda: self.now)
        self.health.keep_only({PAIR: TARGET.url})

    def note(self, *results: str, sent: bool = True, target: ProbeTarget = TARGET, detail: str = "") -> None:
        for result in results:
            self.health.note(target, "short", Outcome(result, sent=sent, record=ProbeRecord("chat", "short"), detail=detail))
            self.now += 30

    def lines(self) -> list[str]:
        return [f"{record.levelname} {record.getMessage()}" for record in self._caplog.records if record.name == "llm_exporter.probes"]


@pytest.fixture
def news(caplog: pytest.LogCaptureFixture) -> News:
    return News(caplog)


def test_a_change_is_one_line_and_a_run_is_none(news: News, caplog: pytest.LogCaptureFixture) -> None:
    news.note("success", "success")
    assert news.lines() == []
    news.note("connect", "connect", "http_404", "timeout", detail="nothing listens")
    assert news.lines() == ["WARNING probe begins to fail: connect: nothing listens"]
    assert vars(caplog.records[0]).items() >= {"target": "chat", "probe_module": "short", "reason": "connect"}.items()
    news.note("success", "success")
    assert news.lines()[1:] == ["INFO probe works again after 4 that failed"]
    news.note("timeout")
    assert news.lines()[2:] == ["WARNING probe begins to fail: timeout"]


def test_a_rest_is_told_once_in_a_row_of_failures_and_shows_until_the_next_run(news: News) -> None:
    def rest() -> None:
        record = ProbeRecord("chat", "short")
        news.health.note(
            TARGET, "short", Outcome("timeout", sent=False, record=record, detail="resting after 2 failures in a row", resting=True)
        )

    def resting() -> list[bool]:
        return [row["resting"] for row in news.health.rows("chat")]

    news.note("timeout", "timeout")
    for _ in range(3):
        rest()
    assert resting() == [True]
    news.note("timeout")
    assert resting() == [False]
    rest()
    assert news.lines() == ["WARNING probe begins to fail: timeout", "INFO probe is resting after 2 failures in a row"]
    (row,) = news.health.rows("chat")
    assert (row["failing"], row["failures_in_a_row"], row["resting"]) == (True, 3, True)
    news.note("success", "timeout")
    rest()
    assert news.lines()[-1] == "INFO probe is resting after 2 failures in a row"
    assert len(news.lines()) == 5


def test_a_rest_after_failures_that_a_reload_has_forgotten_is_a_warning_and_has_a_row(news: News) -> None:
    record = ProbeRecord("chat", "short")
    outcome = Outcome("skipped_busy", sent=False, record=record, detail="resting after 9 failures in a row", resting=True)
    news.health.note(TARGET, "short", outcome)
    news.health.note(ProbeTarget("chat", "http://elsewhere"), "short", outcome)
    assert news.lines() == ["WARNING probe is resting after 9 failures in a row"]
    (row,) = news.health.rows("chat")
    assert (row["failing"], row["resting"], row["detail"]) == (False, True, "resting after 9 failures in a row")


def test_the_row_says_what_fails_now_and_since_when(news: News) -> None:
    assert news.health.rows("chat") == []
    news.note("success")
    news.note("connect", "http_404", detail="no such model")
    (row,) = news.health.rows("chat")
    assert row == {
        "module": "short", "result": "http_404", "detail": "no such model", "failing": True, "failures_in_a_row": 2,
        "failing_since": "2027-01-15T08:00:30Z", "resting": False,
    }  # fmt: skip
    news.note("success")
    (row,) = news.health.rows("chat")
    assert (row["failing"], row["failures_in_a_row"], row["failing_since"], row["result"]) == (False, 0, None, "success")
    assert news.health.rows("other") == []


def test_skips_that_pass_by_themselves_change_nothing_and_one_that_does_not_is_told(news: News) -> None:
    news.note("timeout")
    news.note("skipped_busy", "skipped_loading", "skipped_budget", "timeout", "success", sent=False)
    assert (len(news.lines()), news.health.rows("chat")[0]["failures_in_a_row"]) == (1, 1)
    news.note("success")
    news.note("skipped_unknown_engine", "skipped_unknown_engine", sent=False, detail="set engine")
    assert news.lines()[2:] == ["WARNING probe begins to fail: skipped_unknown_engine: set engine"]


def test_what_is_not_configured_any_more_is_nobodys_news(news: News) -> None:
    news.note("timeout")
    news.health.keep_only({PAIR: "http://b"})
    assert news.health.rows("chat") == []
    news.note("timeout")  # a run on the old server ends
    news.note("timeout", target=ProbeTarget("http://c", "http://c"))
    assert (len(news.lines()), news.health.rows("chat"), news.health.rows("http://c")) == (1, [], [])
    news.health.keep_only({PAIR: "http://b"})
    news.note("timeout", target=ProbeTarget("chat", "http://b"))
    assert len(news.lines()) == 2


def probing(
    prober: FakeProber,
    *,
    allowed: Iterable[str] = (),
    url: str = "http://a",
    pipeline: Pipeline | None = None,
    module: ProbeModule = SHORT,
    authorization: Authorization | None = None,
) -> tuple[Probes, Config]:
    """Probes without a child process."""
    running = {} if pipeline is None else {"chat": SimpleNamespace(pipeline=pipeline)}
    made = Probes(Page(probes.METRICS, lambda: 0.0), SimpleNamespace(running=running))  # type: ignore[arg-type]
    made._runner._tools = SimpleNamespace(  # type: ignore[assignment]
        prober=prober, **{name: getattr(made._runner._tools, name) for name in ("store", "clock", "wall")}
    )
    made._pool.start = lambda: None  # type: ignore[method-assign]
    config = Config(
        targets=(Target(name="chat", url=url, probes=("short",), authorization=authorization),),
        probe_modules={"short": module},
        web=Web(allow_probe_urls=tuple(allowed)),
    )
    made.apply(config, config.targets)
    return made, config


def text_of(page: str | Page) -> str:
    assert isinstance(page, Page)
    return page.render()[0].decode()


def test_a_scheduled_failure_is_on_the_page_in_the_rows_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    prober = FakeProber(answer=lambda _: ProbeReading("connect", "nothing listens"))
    made, config = probing(prober)
    made.apply(config, config.targets)["probe chat short"].work()
    assert 'llm_probe_success{module="short",target="chat"} 0.0\n' in text_of(made._page)
    (row,) = made.rows("chat")
    assert (row["result"], row["detail"], row["failing"]) == ("connect", "nothing listens", True)
    assert sum("begins to fail" in record.getMessage() for record in caplog.records) == 1


def test_a_new_url_takes_the_old_servers_time_to_first_token_off_the_page_at_once() -> None:
    made, config = probing(FakeProber())
    job = made.apply(config, config.targets)["probe chat short"]
    job.work()
    assert "llm_probe_time_to_first_token_seconds{" in text_of(made._page)
    elsewhere = config.targets[0].model_copy(update={"url": "http://b"})
    changed = made.apply(config, (elsewhere,))["probe chat short"]
    assert "llm_probe_time_to_first_token_seconds{" not in text_of(made._page)
    assert "llm_probe_success{" not in text_of(made._page)
    assert made.rows("chat") == []
    assert changed.settings != job.settings  # so the new one is probed soon


def test_probes_have_a_lane_of_their_own() -> None:
    made, config = probing(FakeProber())
    assert {job.lane for job in made.apply(config, config.targets).values()} == {"probes"}


@pytest.mark.parametrize("url", ["http://b/ok", "http://b/ok/", "HTTP://B:80/ok"])
def test_spellings_of_an_admitted_url_are_one(url: str) -> None:
    prober = FakeProber()
    made, _ = probing(prober, allowed=["http://b/ok"])
    assert made.probe_now("http://b/ok", "short", None)[0] == 200
    status, page = made.probe_now(url, "short", None)
    assert status == 200
    assert 'target="http://b/ok"' in text_of(page)
    assert len(prober.calls) == 1  # the last run is young
    assert "http://b" not in text_of(made._page)


@pytest.mark.parametrize(
    "url", ["http://b/ok/..%2fadmin", "http://b/ok/..;/admin", "http://b/ok//", "http://b/ok/%252e%252e/x", "http://b/other"]
)
def test_what_is_not_admitted_is_not_sent(url: str) -> None:
    prober = FakeProber()
    made, _ = probing(prober, allowed=["http://b/ok"])
    assert made.probe_now(url, "short", None)[0] == 404
    assert prober.calls == []


def test_a_bug_in_a_probe_is_raised_after_it_is_on_the_page() -> None:
    def bug(_: str) -> ProbeReading:
        raise OverflowError("int too large")

    made, config = probing(FakeProber(answer=bug))
    with pytest.raises(OverflowError):
        made.apply(config, config.targets)["probe chat short"].work()
    assert 'llm_probe_success{module="short",target="chat"} 0.0\n' in text_of(made._page)
    rows: list[dict[str, Any]] = made.rows("chat")
    assert rows[0]["detail"] == "bug of the exporter: OverflowError"


def test_credentials_go_to_the_target_and_never_to_an_admitted_url() -> None:
    """Also not to one at the target's own host: whoever may type a URL may not make us log in there."""
    prober = FakeProber()
    made, _ = probing(
        prober, allowed=["http://b/ok", "http://a/other"], authorization=Authorization(type="Bearer", credentials=Secret("sk-hidden-token"))
    )
    for asked in ("http://b/ok", "http://a/other", "chat"):
        assert made.probe_now(asked, "short", None)[0] == 200
    told = {call.url: {name.lower(): value for name, value in call.headers.items()}.get("authorization") for call in prober.calls}
    assert told == {"http://b/ok": None, "http://a/other": None, "http://a": "Bearer sk-hidden-token"}


def test_probe_now_hands_on_the_timeout_of_the_scrape_and_refuses_what_it_must() -> None:
    prober = FakeProber()
    made, _ = probing(prober)
    assert made.probe_now("chat", "short", 3.0)[0] == 200
    assert 2.0 < prober.calls[0].timeout_seconds <= 2.5
    assert made.probe_now("chat", "no such", None)[0] == 404
    assert made.probe_now("chat", "short", 0.2)[0] == 400
    assert len(prober.calls) == 1


def vllm_page(waiting: float | None, awake: float | None = None, models: Iterable[str] = ("m",)) -> Fetched:
    lines = []
    for model in models:
        lines += ["# TYPE vllm:num_requests_running gauge", f'vllm:num_requests_running{{model_name="{model}",engine="0"}} 250']
    if waiting is not None:
        lines += ["# TYPE vllm:num_requests_waiting gauge", f'vllm:num_requests_waiting{{model_name="m",engine="0"}} {waiting}']
    if awake is not None:
        lines += ["# TYPE vllm:engine_sleep_state gauge", f'vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {awake}']
    return Fetched("\n".join([*lines, ""]).encode(), "text/plain; version=0.0.4", 0.0)


def pipeline_after(*scrapes: Fetched | Failed, now: float, every: float = 5.0) -> Pipeline:
    pipeline = Pipeline(Target(name="chat", url="http://a"), Page(declared(), lambda: now), Timing(5.0, 10.0), lambda: 1e9 + now)
    for number, scraped in enumerate(scrapes):
        pipeline.take(scraped, now - every * (len(scrapes) - 1 - number))
    return pipeline


DOWN, LOADING = Failed("http_500", "overloaded", "", 0.1), Failed("http_503", "not yet", "", 0.1)
QUEUES = {
    "nobody waits": ((vllm_page(0),), "success"),
    "many wait": ((vllm_page(500),), "skipped_busy"),
    "not told": ((vllm_page(None),), "skipped_busy"),
    "page gone": ((vllm_page(0), DOWN), "skipped_busy"),
    "never a page": ((), "skipped_busy"),
    "loading": ((vllm_page(0), LOADING), "skipped_loading"),
    "asleep": ((vllm_page(0, awake=0),), "skipped_sleeping"),
    "awake": ((vllm_page(0, awake=1),), "success"),
    "back again": ((DOWN, vllm_page(0)), "success"),
}


@pytest.mark.parametrize(("scrapes", "result"), QUEUES.values(), ids=QUEUES)
@pytest.mark.parametrize("way", ["scheduled", "asked"])
def test_what_the_page_says_decides_whether_a_probe_is_sent(scrapes: tuple[Fetched | Failed, ...], result: str, way: str) -> None:
    prober = FakeProber()
    pipeline = pipeline_after(*scrapes, now=time.monotonic()) if scrapes else None
    module = SHORT.model_copy(update={"max_waiting": 2})
    made, config = probing(prober, pipeline=pipeline, module=module)
    if way == "scheduled":
        made.apply(config, config.targets)["probe chat short"].work()
        page = text_of(made._page)
    else:
        page = text_of(made.probe_now("chat", "short", None)[1])
    assert f'llm_probe_last_result{{module="short",result="{result}",target="chat"}} 1.0\n' in page
    assert len(prober.calls) == (result == "success")


def test_a_view_of_the_engine_holds_what_the_page_says_and_no_longer_than_it_is_good() -> None:
    pipeline = pipeline_after(vllm_page(7), now=100.0)
    view = engine_view(pipeline, 100.0)
    assert (view.state, view.engine, view.model) == ("ready", "vllm", "m")
    assert (view.requests_running, view.requests_waiting, view.context_tokens) == (250, 7, None)
    assert engine_view(pipeline, 110.0) == view
    assert engine_view(pipeline, 110.1).requests_waiting is None  # two intervals and a timeout: a scrape hangs


def test_a_queue_of_which_a_part_is_not_known_is_not_known() -> None:
    assert engine_view(pipeline_after(vllm_page(0, models=("m", "n")), now=0.0), 0.0).requests_waiting is None


def test_the_context_is_the_configured_one_where_the_page_tells_none() -> None:
    pipeline = pipeline_after(vllm_page(0), now=0.0)
    pipeline.target = pipeline.target.model_copy(update={"limits": pipeline.target.limits.model_copy(update={"context_tokens": 4096})})
    assert engine_view(pipeline, 0.0).context_tokens == 4096


def test_advice_is_a_line_once_and_stays_in_the_row(news: News) -> None:
    def note(result: str, *, sent: bool, advice: str = "") -> None:
        record = ProbeRecord("chat", "short")
        news.health.note(TARGET, "short", Outcome(result, sent=sent, record=record, detail=advice, advice=advice))

    for _ in range(3):
        note("skipped_busy", sent=False, advice="the queue is not known")
    assert news.lines() == ["WARNING probe: the queue is not known"]
    (row,) = news.health.rows("chat")
    assert (row["result"], row["detail"], row["failing"]) == ("skipped_busy", "the queue is not known", False)
    for _ in range(3):
        note("success", sent=True, advice="prompt_tokens 32768 left out")
    assert news.lines()[1:] == ["WARNING probe: prompt_tokens 32768 left out"]
    note("success", sent=True)
    assert news.health.rows("chat")[0]["detail"] == ""
    note("skipped_context", sent=False, advice="nothing fits")
    assert news.lines()[2:] == ["WARNING probe begins to fail: skipped_context: nothing fits"]
