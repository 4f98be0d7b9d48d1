"""Alerts about the engine itself: reachable, alive, starting, restarting, and saying what it should."""

from __future__ import annotations

from llm_exporter.generate import evidence as say
from llm_exporter.generate.alert import Alert, Cause, Flags, Severity, Subject
from llm_exporter.generate.boards import EXPORTER, FLEET, GPU, TARGET
from llm_exporter.generate.fragments import last
from llm_exporter.generate.promql import equals, lines, on_target, one_of, over, selector
from llm_exporter.generate.settings import RuleSettings
from llm_exporter.generate.thresholds import (
    RESTARTS,
    SCRAPE_SECONDS,
    STARTING_GRACE,
)

_LOADING = equals("state", "loading")
_WARM_UP = 300  # seconds after a restart in which first requests compile and capture graphs
_HOUR = 3600

TARGET_DOWN = Alert(
    name="LLMTargetDown",
    severity=Severity.PAGE,
    subject=Subject.DOWN,
    labels=("target",),
    summary="{{ $labels.target }} does not answer.",
    value="its metrics could not be read for a minute (llm_target_up {{ $value }})",
    evidence=(say.DOWN_REASON, say.STATE, say.LOST_GPUS, say.PROBES),
    meaning="The server is gone, cut off, or too busy to answer at all. Its users most likely get nothing.",
    confirm=(
        "Read the reason: refused means no process, timeout a stuck or overloaded one, http_401 a changed token, dns or tls the way to it.",
        "Fetch the page by hand from the exporter's host: `curl -m 10 URL/metrics`.",
    ),
    causes=(
        Cause("The process ended: out of memory, a GPU error, a deployment.", TARGET, "Engine state"),
        Cause("The API server's event loop is blocked: scrapes got slower before they failed.", EXPORTER, "Scrape duration"),
        Cause("Network, proxy, certificate or token changed (several targets at once).", FLEET, "Targets"),
        Cause("A GPU fell off the bus and took the process along.", GPU, "XID errors"),
    ),
    action="Look whether the process lives. If not, restart it and keep the log; if it does, take it out of the router and see "
    "LLMEngineStalled.",
    flags=Flags(
        vllm=("--api-server-count higher, where the API server is too busy to answer",),
        sglang=("--tokenizer-worker-num higher, where the HTTP server is too busy to answer", "--enable-metrics, or the page is not there"),
    ),
    board=TARGET,
    hold=60,
    expression=lambda settings: f"{last(settings, 'llm_target_up')} == 0",
    blind="Muted for a quarter of an hour while the engine loads (LLMEngineStarting).",
)

ENGINE_STALLED = Alert(
    name="LLMEngineStalled",
    severity=Severity.PAGE,
    subject=Subject.STALL,
    labels=("target",),
    summary="{{ $labels.target }} has work and does nothing.",
    value="no token, no step and no finished request for the time of `stall.after`, with requests there",
    evidence=(say.STATE, say.VERDICT, say.LOST_GPUS, say.PROBES),
    meaning="Requests are accepted and never answered. Health checks stay green, so no router takes the server out.",
    confirm=(
        "Send one request by hand: `llm-exporter probe URL --prompt-tokens 64 --repeat 1`; it must time out.",
        "Look at the GPU's power: near idle with 100 % utilisation is a kernel that spins in a deadlock.",
    ),
    causes=(
        Cause("Ranks wait for each other in a collective (NCCL) that one of them never entered.", GPU, "Power and utilisation"),
        Cause("A GPU reported an error.", GPU, "XID errors"),
        Cause("The scheduler process died or is blocked, and the API server did not notice.", GPU, "CPU of the server's processes"),
    ),
    action="Take the server out of the router, dump its stacks (`py-spy dump --pid` of each process), restart it.",
    flags=Flags(
        vllm=("--disable-custom-all-reduce, where it hangs in collectives",),
        sglang=("--watchdog-timeout, so that a hang ends itself", "--disable-custom-all-reduce, where it hangs in collectives"),
    ),
    board=TARGET,
    hold=15,
    expression=lambda settings: f"{last(settings, 'llm_engine_stalled')} == 1",
    blind="A long prefill on a busy GPU is not a stall; `stall.after` in llm-exporter.yml is how long nothing may move.",
)


def _starting(settings: RuleSettings) -> str:
    loading = _without_state(last(settings, "llm_engine_state", _LOADING))
    restarts = over("increase", "llm_engine_restarts_total", settings.window(_WARM_UP))
    grace = settings.changed.get(STARTING_GRACE.name, STARTING_GRACE.value)
    before = over("last_over_time", selector("llm_engine_state", _LOADING), settings.shortest, offset=settings.span(grace))
    again = over("increase", "llm_engine_restarts_total", settings.window(_HOUR))
    return lines(
        f"(({loading} == 1) or ({restarts} > 0))",
        f"{on_target('unless')} ({before} == 1)",
        f"{on_target('unless')} (round({again}) >= {settings.limit(RESTARTS)})",
    )


def _without_state(expression: str) -> str:
    """Drops `state`, of which one value was selected."""
    return f"max without (state) ({expression})"


ENGINE_STARTING = Alert(
    name="LLMEngineStarting",
    severity=Severity.NONE,
    subject=Subject.STARTING,
    labels=("target",),
    summary="{{ $labels.target }} is starting.",
    value=f"loading, or restarted in the last 5 minutes; mutes for {STARTING_GRACE.text} at most",
    evidence=(say.STATE, say.DOWN_REASON),
    meaning="Expected after a deployment: weights load, graphs are captured, first requests are slow. It calls nobody and mutes the alerts "
    "that a start sets off.",
    confirm=("The server's log shows its progress.",),
    causes=(
        Cause("A deployment or a restart by hand.", TARGET, "Engine state"),
        Cause("A crash; two within an hour end the muting and open LLMEngineRestarting.", TARGET, "Engine state"),
    ),
    action="None. If it never ends, LLMTargetDown comes through after the grace.",
    board=TARGET,
    expression=_starting,
    thresholds=(STARTING_GRACE, RESTARTS),
    blind="A load balancer without servers answers 503 like a loading engine: LLMTargetDown is then late by the grace.",
)

ENGINE_RESTARTING = Alert(
    name="LLMEngineRestarting",
    severity=Severity.TICKET,
    subject=Subject.DOWN,
    labels=("target",),
    summary="{{ $labels.target }} restarts again and again.",
    value=f"{{{{ $value | humanize }}}} restarts in an hour, limit {RESTARTS.text}",
    evidence=(say.STATE, say.VERSION, say.LOST_GPUS),
    meaning="Each restart ends the answers that were under way and empties the caches.",
    confirm=("Open the link: counters fall to zero at each restart.", "Read the end of the log of the process before."),
    causes=(
        Cause("Out of memory, of the GPU or of the host.", GPU, "GPU memory"),
        Cause("A GPU error kills the process.", GPU, "XID errors"),
        Cause("A liveness probe of the orchestrator is too impatient for a long start or a busy server.", EXPORTER, "Scrape duration"),
    ),
    action="Find the last lines of the log before the restart. If it is memory, lower the memory share; if a GPU, drain the host.",
    flags=Flags(vllm=("--gpu-memory-utilization lower",), sglang=("--mem-fraction-static lower",)),
    board=TARGET,
    expression=lambda settings: (
        f"round({over('increase', 'llm_engine_restarts_total', settings.window(_HOUR))}) >= {settings.limit(RESTARTS)}"
    ),
    thresholds=(RESTARTS,),
)


_MOSTLY_UP = "0.75"  # of 2 R: not yet so when the last status of the time before is forgotten; two lost scrapes do not count


def _signals_missing(settings: RuleSettings) -> str:
    status = last(settings, "llm_signal_status", one_of("status", ("not_exposed", "stale")))
    # A server that was down has no fresh signals, and LLMTargetDown says so. The status of that time is seen for R after it is back;
    # without this, whoever was called gets a ticket at the moment at which all is well again.
    up = over("avg_over_time", "llm_target_up", settings.window(2 * settings.least_range))
    return lines(f"count without (signal) (max without (window) ({status} == 1))", f"{on_target('unless')} ({up} < {_MOSTLY_UP})")


SIGNALS_MISSING = Alert(
    name="LLMSignalsMissing",
    severity=Severity.TICKET,
    subject=Subject.SIGNALS,
    labels=("target", "status"),
    summary="{{ $labels.target }} lacks signals that it should have ({{ $labels.status }}).",
    value="signals that are {{ $labels.status }}: {{ $value | humanize }}",
    evidence=(say.MISSING, say.VERSION),
    meaning="Nobody is hurt, but alerts and panels that need these signals are blind.",
    confirm=("Open the target's debug page on the exporter: it shows each raw line and what became of it.",),
    causes=(
        Cause("not_exposed: the engine was upgraded and renamed or dropped a metric.", EXPORTER, "Signal status"),
        Cause("stale: the page's own times are old, or its gauges stand still while counters move.", EXPORTER, "Signal status"),
        Cause("stale: a proxy serves a cached page.", EXPORTER, "Scrape duration"),
    ),
    action="not_exposed: compare the engine's version with the ones the exporter knows, upgrade the exporter or report it. stale: look at "
    "the engine's metrics page by hand, twice.",
    flags=Flags(
        vllm=("remove --disable-log-stats", "--show-hidden-metrics-for-version, right after an upgrade"),
        sglang=("--enable-metrics", "--enable-metrics-for-all-schedulers, with data-parallel attention"),
    ),
    board=EXPORTER,
    hold=600,
    expression=_signals_missing,
    blind="What this engine or release never has (not_supported), and what is switched off (feature_off), opens nothing.",
)

SCRAPE_SLOW = Alert(
    name="LLMScrapeSlow",
    severity=Severity.TICKET,
    subject=Subject.SIGNALS,
    labels=("target",),
    summary="{{ $labels.target }} takes long to give its metrics.",
    value=f"{{{{ $value | humanizeDuration }}}} a scrape over 5 minutes, limit {SCRAPE_SECONDS.text}",
    evidence=(say.VERDICT, say.RUNNING_BY_MODEL, say.VERSION),
    meaning="The process that answers is the one that streams tokens: what delays the page delays every first token too.",
    confirm=("Fetch the page by hand and time it: `curl -s -o /dev/null -w '%{time_total}' URL/metrics`.",),
    causes=(
        Cause("The API server's event loop is busy with tokenising and streaming.", TARGET, "Time to first token by phase"),
        Cause("The host has too few CPUs.", GPU, "CPU pressure and throttling"),
        Cause("The page is huge: many models, adapters or labels.", EXPORTER, "Samples per scrape"),
    ),
    action="Look at the frontend phase of the time to first token; if it is long, give the API server more processes.",
    flags=Flags(vllm=("--api-server-count higher",), sglang=("--tokenizer-worker-num higher",)),
    board=EXPORTER,
    hold=300,
    expression=lambda settings: (
        f"{over('avg_over_time', selector('llm_target_scrape_duration_seconds'), settings.window(300))} > {settings.limit(SCRAPE_SECONDS)}"
    ),
    thresholds=(SCRAPE_SECONDS,),
)

ALERTS: tuple[Alert, ...] = (
    TARGET_DOWN, ENGINE_STALLED, ENGINE_STARTING, ENGINE_RESTARTING, SIGNALS_MISSING, SCRAPE_SLOW,
)  # fmt: skip
