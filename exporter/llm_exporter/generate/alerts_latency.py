"""Alerts about what users wait for: burn rates of the latency SLOs, the P99 of the time to first token, silence, and errors."""

from __future__ import annotations

from llm_exporter.generate import evidence as say
from llm_exporter.generate.alert import Alert, Cause, Flags, Severity, Subject
from llm_exporter.generate.boards import GPU, TARGET
from llm_exporter.generate.burnrate import HIGHEST_SHARE, TIERS, Tier
from llm_exporter.generate.fragments import increase, users, with_traffic
from llm_exporter.generate.promql import Matcher, either, equals, lines, number, over, selector
from llm_exporter.generate.settings import Objective, RuleSettings
from llm_exporter.generate.thresholds import (
    BURN_FACTOR,
    BURN_FLOOR,
    ERROR_RATIO,
    ERROR_REQUESTS,
    TTFT_P99,
    TTFT_P99_REQUESTS,
)
from llm_exporter.signals.recorded import ERROR_BUDGET, slow_ratio, slow_requests, ttft_quantile

_TTFT_COUNT = "llm_time_to_first_token_seconds_count"
_SILENCE = 180  # seconds
_RATE = 300
_TEXT = {300: "5m", 1800: "30m", 3600: "1h", 6 * 3600: "6h", 3 * 86_400: "3d"}

SLOW_CAUSES = (
    Cause(
        "More requests arrive than the engine serves: the queue is most of the time to first token.", TARGET, "Time to first token by phase"
    ),
    Cause("Long prompts hold up the others: prefill is most of it.", TARGET, "Time to first token by phase"),
    Cause("The KV cache is full, requests are thrown back.", TARGET, "KV cache"),
    Cause("The prefix cache no longer hits, so that every prompt is computed in full.", TARGET, "Prefix cache hit ratio"),
    Cause("The CPU feeds the GPU too slowly.", GPU, "GPU starved by the CPU"),
    Cause("The API server is the bottleneck: the frontend phase is most of it.", TARGET, "Time to first token by phase"),
    Cause("The GPU's clocks are held down.", GPU, "Throttling"),
)
SLOW_FLAGS = Flags(
    vllm=(
        "--max-num-seqs higher, where running stands at its limit and the KV cache has room",
        "--max-num-batched-tokens lower where decode stutters, higher where prefill is slow",
        "--api-server-count higher, where the frontend phase is long",
        "--max-num-queued-reqs or --max-num-queued-tokens, to refuse early what would wait too long",
    ),
    sglang=(
        "--max-running-requests higher, where running stands at its limit and the KV cache has room",
        "--schedule-conservativeness lower (0.3), where requests wait although the KV cache has room",
        "--chunked-prefill-size lower where decode stutters, higher where prefill is slow",
        "--tokenizer-worker-num higher, where the frontend phase is long",
        "--max-queued-requests, to refuse early what would wait too long",
    ),
)


def _scopes(settings: RuleSettings, tier: Tier) -> tuple[tuple[tuple[Matcher, ...], Objective | None], ...]:
    """Which series a tier looks at, each with the objective that is known for them."""
    if settings.objectives is None:
        return (((), None),)
    known = tuple((o.matchers, o) for o in settings.objectives if BURN_FACTOR[tier.name].value * (1 - o.objective) <= HIGHEST_SHARE)
    return (*known, (settings.elsewhere(), None)) if settings.discovers else known


def _burn_expression(settings: RuleSettings, tier: Tier) -> str:
    """Objectives that are known as literals, or one condition that reads the objectives from the metrics."""
    factor, floor = settings.limit(BURN_FACTOR[tier.name]), BURN_FLOOR[tier.name]
    found: list[str] = []
    can_fire: tuple[str, ...]
    for matchers, objective in _scopes(settings, tier):
        if objective is None:
            budget = selector(ERROR_BUDGET, *matchers)
            limit = f"{factor} * {budget}"
            can_fire = (f"and ({limit} <= {number(HIGHEST_SHARE)})",)
        else:
            changed = settings.changed.get(BURN_FACTOR[tier.name].name, tier.factor)
            limit = number(changed * (1 - objective.objective))
            can_fire = ()
        expression = lines(
            f"{selector(slow_ratio(_TEXT[tier.long]), *matchers)} > {limit}",
            f"and ({selector(slow_ratio(_TEXT[tier.short]), *matchers)} > {limit})",
            *can_fire,
            f"and (round({selector(slow_requests(_TEXT[tier.long]), *matchers)}) >= {settings.limit(floor)})",
        )
        traffic = users(settings, "llm_slo_requests_total", tier.long, matchers=matchers, largest="slo")
        found.append(with_traffic(settings, expression, traffic, floor))
    return either(*found) if found else ""


def _burn(tier: Tier, severity: Severity, meaning: str, action: str) -> Alert:
    long, short = _TEXT[tier.long], _TEXT[tier.short]
    return Alert(
        name=f"LLMSLOBudgetBurn{tier.name.capitalize()}",
        severity=severity,
        subject=Subject.LATENCY,
        labels=("target", "model", "slo"),
        summary="{{ $labels.target }} ({{ $labels.model }}) spends the error budget of SLO {{ $labels.slo }} too fast.",
        value=f"{{{{ $value | humanizePercentage }}}} of the requests in {long} were too slow, "
        f"at least {tier.factor.normalize():f} times what the objective allows (and in the last {short} too)",
        evidence=(say.VERDICT, say.EDGE, say.ASKED_EDGE, say.RUNNING, say.WAITING),
        meaning=meaning,
        confirm=(
            "Open the link: the slow share stands above its line in both windows.",
            "Compare the threshold as measured with the one configured: they differ where the engine has no bucket edge there.",
            "Look at the probes: they measure the same from outside, without the users' prompts.",
        ),
        causes=SLOW_CAUSES,
        action=action,
        flags=SLOW_FLAGS,
        board=TARGET,
        hold=tier.hold,
        expression=lambda settings: _burn_expression(settings, tier),
        thresholds=(BURN_FACTOR[tier.name], BURN_FLOOR[tier.name]),
        blind="Requests that die before their first token are in no latency histogram: LLMErrorRateHigh and LLMProbeFailing cover them. "
        "When nothing is served at all the ratio is absent: LLMNoFirstTokens and LLMEngineStalled cover that. "
        "A target that is new is judged by as much of the window as there is. "
        f"A tier whose limit is more than {HIGHEST_SHARE:.0%} of all requests is left out.",
    )


_FAST, _MEDIUM, _SLOW = TIERS

BURN_FAST = _burn(
    _FAST,
    Severity.PAGE,
    "Users wait longer than promised, now and many of them: at this pace a fiftieth of the month's error budget goes in an hour.",
    "Read `limited by` in the evidence and go to that panel. If it is the queue, take load off (route away, scale out, refuse early).",
)
BURN_MEDIUM = _burn(
    _MEDIUM,
    Severity.PAGE,
    "Users have waited longer than promised for hours: a twentieth of the month's error budget goes in six hours.",
    "Read `limited by` in the evidence and go to that panel; find what changed six hours ago (load, prompts, version, host).",
)
BURN_SLOW = _burn(
    _SLOW,
    Severity.TICKET,
    "A few users too many wait longer than promised, day after day: the month's error budget will not last the month.",
    "Look for the hours in which it happens; add capacity for them, or change the promise.",
)


def _ttft_p99(settings: RuleSettings) -> str:
    slow = f"{ttft_quantile(99)} > {settings.limit(TTFT_P99)}"
    return with_traffic(settings, slow, users(settings, _TTFT_COUNT, _RATE), TTFT_P99_REQUESTS)


TTFT_P99_HIGH = Alert(
    name="LLMTTFTP99High",
    severity=Severity.TICKET,
    subject=Subject.LATENCY,
    labels=("target", "model"),
    summary="One request in a hundred on {{ $labels.target }} ({{ $labels.model }}) waits too long for its first token.",
    value=f"P99 {{{{ $value | humanizeDuration }}}} over 5 minutes, limit {TTFT_P99.text}",
    evidence=(say.VERDICT, say.BUCKET, say.SATURATED, say.RUNNING, say.WAITING),
    meaning="The unlucky ones look at an empty answer for seconds. A target with an SLO has better alerts; this one is for those without.",
    confirm=(
        "Open the link: the P99 stands above its line, and the band around it (the width of the bucket) does too.",
        "A P99 above the highest bucket is shown as that bucket's edge: the truth is worse.",
    ),
    causes=SLOW_CAUSES,
    action="Read `limited by` in the evidence and go to that panel.",
    flags=SLOW_FLAGS,
    board=TARGET,
    hold=300,
    expression=_ttft_p99,
    thresholds=(TTFT_P99, TTFT_P99_REQUESTS),
    blind=f"Silent below {TTFT_P99_REQUESTS.text} of users in 5 minutes, where a P99 is the time of a single request.",
)


def _no_first_tokens(settings: RuleSettings) -> str:
    window = settings.window(_SILENCE)
    return lines(
        f"{over('min_over_time', 'llm_requests_waiting', window)} > 0",
        f"unless ({over('increase', _TTFT_COUNT, window)} > 0)",
        f"unless ({over('increase', 'llm_generation_tokens_total', window)} > 0)",
        f"unless ({over('increase', 'llm_inter_token_latency_seconds_count', window)} > 0)",
    )


NO_FIRST_TOKENS = Alert(
    name="LLMNoFirstTokens",
    severity=Severity.PAGE,
    subject=Subject.STALL,
    labels=("target", "model"),
    summary="Requests wait on {{ $labels.target }} ({{ $labels.model }}), and nobody gets a token.",
    value="{{ $value | humanize }} requests or more have waited for 3 minutes, with no token for anyone",
    evidence=(say.STATE, say.STALLED, say.VERDICT, say.PROBES),
    meaning="Nobody gets an answer. The latency alerts are blind to it: without first tokens there is no latency to measure.",
    confirm=(
        "Send one request by hand: `llm-exporter probe URL --prompt-tokens 64 --repeat 1`.",
        "Look whether the GPU works: power near idle with utilisation at 100 % is a spinning kernel.",
    ),
    causes=(
        Cause("The engine hangs (collective communication, a deadlocked scheduler).", TARGET, "Engine state"),
        Cause("A GPU reported an error or fell off the bus.", GPU, "XID errors"),
        Cause("All waiting requests lack something other than room: an adapter, a KV transfer, a grammar.", TARGET, "Queue"),
        Cause("One huge prompt is being computed.", TARGET, "Prompt and output tokens"),
    ),
    action="Take the server out of the router, keep its log and a stack dump (`py-spy dump --pid`), then restart it.",
    flags=Flags(
        vllm=(
            "--max-loras higher, where all wait for adapters",
            "--long-prefill-token-threshold, so that a huge prompt does not block the rest",
        ),
        sglang=("--max-loras-per-batch higher, where all wait for adapters", "--watchdog-timeout, so that a hang ends itself"),
    ),
    board=TARGET,
    hold=60,
    expression=_no_first_tokens,
    blind="SGLang's queue gauge stands still when its scheduler hangs, and may stand at 0: LLMEngineStalled covers that.",
)


def _error_rate(settings: RuleSettings) -> str:
    limit, window = settings.limit(ERROR_RATIO), _RATE
    http = "llm_http_responses_total"
    failed = increase(settings, http, window, "code", matchers=(equals("code", "5xx"),))
    answered = increase(settings, http, window, "code")
    by_status = with_traffic(settings, f"({failed} / ({answered} > 0) > {limit})", users(settings, http, window, "code"), ERROR_REQUESTS)
    finished, rejected = "llm_requests_finished_total", increase(settings, "llm_requests_rejected_total", window, "reason")
    errors = increase(settings, finished, window, "outcome", matchers=(equals("outcome", "error"),))
    ended = increase(settings, finished, window, "outcome")
    by_outcome = with_traffic(
        settings,
        lines(
            f"(({errors} + ({rejected} or {errors} * 0))",
            f"/ (({ended} + ({rejected} or {ended} * 0)) > 0) > {limit})",
        ),
        users(settings, finished, window, "outcome"),
        ERROR_REQUESTS,
    )
    return either(by_status, by_outcome)


ERROR_RATE_HIGH = Alert(
    name="LLMErrorRateHigh",
    severity=Severity.PAGE,
    subject=Subject.ERRORS,
    labels=("target", "model"),
    summary="{{ $labels.target }} fails too many requests.",
    value=f"{{{{ $value | humanizePercentage }}}} of the requests in 5 minutes failed or were refused, limit {ERROR_RATIO.text}",
    evidence=(say.STATE, say.WAITING, say.KV_USAGE, say.PROBES),
    meaning="Users get errors instead of answers.",
    confirm=(
        "Open the link: answers by status code, and finished requests by outcome.",
        "Send one request by hand: `llm-exporter probe URL --prompt-tokens 64 --repeat 1`.",
    ),
    causes=(
        Cause("An admission limit refuses requests, since more arrive than are served.", TARGET, "Queue"),
        Cause("The engine runs out of memory on long contexts and fails single requests.", TARGET, "Requests by outcome"),
        Cause("The engine crashes and restarts.", TARGET, "Engine state"),
        Cause("A GPU reported an error.", GPU, "XID errors"),
    ),
    action="Read the server's log for the first error; if requests are refused for lack of room, take load off.",
    flags=Flags(
        vllm=(
            "--max-num-queued-reqs, --max-num-queued-tokens: the limits that refuse",
            "--gpu-memory-utilization lower, after out-of-memory errors",
        ),
        sglang=("--max-queued-requests: the limit that refuses", "--mem-fraction-static lower, after out-of-memory errors"),
    ),
    board=TARGET,
    hold=120,
    expression=_error_rate,
    thresholds=(ERROR_RATIO, ERROR_REQUESTS),
    blind="A refusal or a crash inside a stream has status 2xx: the probes cover it (LLMProbeFailing). Requests that a router refuses "
    "before they reach the server are not seen. 4xx are the client's and are not counted.",
)

ALERTS: tuple[Alert, ...] = (BURN_FAST, BURN_MEDIUM, BURN_SLOW, TTFT_P99_HIGH, NO_FIRST_TOKENS, ERROR_RATE_HIGH)
