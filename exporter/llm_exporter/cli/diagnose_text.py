"""A diagnosis as text for people: verdict, evidence, waterfall of the time to first token, advice. Colour only on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from llm_exporter.daemon.diagnosing import Diagnosis, Latency, because_of
from llm_exporter.signals.evidence import Evidence
from llm_exporter.signals.remedies_model import CHECKED
from llm_exporter.signals.remedies_words import EVIDENCE_WORDS
from llm_exporter.wording import three_figures

BAR_WIDTH = 40
PHASES = (("frontend", "API server"), ("queue", "queue"), ("prefill", "prefill"))
_GOOD = ("none", "idle", "prefill_compute", "decode_memory")
# Ratios of `Evidence` as they are shown under the verdict, a group a line.
_RATIOS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "engine",
        (
            ("work", "has work"),
            ("kv_usage", "KV cache"),
            ("waiting_share", "scrapes with a queue"),
            ("queue_share", "queue of TTFT"),
            ("api_share", "API server of TTFT"),
            ("stage", "exposed scheduler stages"),
        ),
    ),
    (
        "GPU",
        (
            ("busy", "active"),
            ("gap", "idle with work there"),
            ("sm", "SMs"),
            ("tensor", "tensor cores"),
            ("dram", "memory traffic"),
            ("power", "power of limit"),
            ("clock", "clock of highest"),
            ("throttled", "throttled"),
            ("nvlink", "links"),
            ("imbalance", "spread"),
        ),
    ),
    (
        "host",
        (
            ("hot", "hottest thread"),
            ("api_hot", "API server's"),
            ("run_delay", "waits for a core"),
            ("cfs", "quota spent"),
            ("psi", "CPU pressure"),
        ),
    ),
)


def print_diagnosis(console: Console, found: Diagnosis, url: str) -> None:
    """Prints everything."""
    engine = f"{found.engine} {found.version}".strip() if found.engine != "unknown" else "unknown engine"
    models = f", model {', '.join(found.models)}" if found.models else ""
    _line(console, f"{url}  {engine}{models}, watched {found.seconds:.0f} s in {found.scrapes} scrapes", "bold")
    if found.failure:
        console.print()
        _line(console, f"No diagnosis: {found.failure}", "bold red")
        if found.hint:
            _line(console, f"  {found.hint}")
        if found.history:
            _line(console, f"  before that: {_history(found)}")
        return
    console.print()
    _verdict(console, found)
    _latency(console, found)
    _advice(console, found)
    for title, lines in (("Cannot tell", found.cannot_tell), ("Missing", found.missing), ("Notes", found.notes)):
        if lines:
            console.print()
            _line(console, title, "bold")
            for line in lines:
                _line(console, f"  {line}")


def _line(console: Console, text: str, style: str = "") -> None:
    """Server's words are no markup."""
    console.print(Text(text, style=style))


def _verdict(console: Console, found: Diagnosis) -> None:
    sure = "" if found.confidence is None else f", confidence {100 * found.confidence:.0f} %"
    since = "" if found.since is None or found.cause == "unknown" else f", since second {found.since:.0f}"
    style = "bold green" if found.cause in _GOOD else "bold yellow" if found.cause == "unknown" else "bold red"
    _line(console, f"Verdict: {found.cause}{sure}{since}", style)
    _line(console, f"  {found.meaning}")
    if len(found.history) > 1:
        _line(console, f"  over this watch: {_history(found)}")
    reasons = [] if found.decision is None else because_of(found.decision)
    if reasons:
        console.print()
        _line(console, "Because", "bold")
        for name, membership in reasons:
            _line(console, f"  {EVIDENCE_WORDS.get(name, name.replace('_', ' '))}: {_strength(membership)}")
    if found.evidence is not None:
        console.print()
        _line(console, f"Measured in the last {found.evidence.seconds:.0f} s", "bold")
        for line in measured(found.evidence):
            _line(console, f"  {line}")
    if found.rates:
        _line(console, "  " + ", ".join(f"{three_figures(value)} {name.replace('_', ' ')}/s" for name, value in found.rates.items()))


def _history(found: Diagnosis) -> str:
    return ", ".join(f"{cause} {100 * part:.0f} %" for cause, part in found.history.items())


def _strength(membership: float) -> str:
    return "strong" if membership >= 0.8 else "clear" if membership >= 0.4 else "weak"


def measured(evidence: Evidence) -> list[str]:
    """What is known, a line per source; what is not known is left out."""
    lines = []
    for source, fields in _RATIOS:
        parts = []
        for name, words in fields:
            value = getattr(evidence, name)
            if value is not None:
                by = f" ({evidence.busy_from})" if name == "busy" and evidence.busy_from else ""
                parts.append(f"{words} {100 * value:.0f} %{by}")
        if source == "engine":
            parts += [] if evidence.running is None else [f"mean batch {evidence.running:.1f}"]
            parts += [f"nothing moved for {evidence.still_seconds:.0f} s"] if evidence.still_seconds > 0 else []
        if parts:
            lines.append(f"{source}: {', '.join(parts)}")
    return lines


def _latency(console: Console, found: Diagnosis) -> None:
    if found.ttft is None:
        return
    console.print()
    _line(console, f"Time to first token, last minute: {_quantiles(found.ttft)}", "bold")
    mean = found.ttft.mean
    phases = [(words, found.phases[phase]) for phase, words in PHASES if phase in found.phases]
    whole = max([mean or 0.0, sum(value for _, value in phases)])
    if whole <= 0 or not phases:
        return
    before = 0.0
    for words, value in phases:
        start, end = round(BAR_WIDTH * before / whole), round(BAR_WIDTH * (before + value) / whole)
        bar = " " * start + ("█" * (end - start) or "▏")
        _line(console, f"  {words:<11}{_seconds(value):>8}  {bar}".rstrip())
        before += value
    if "frontend" not in found.phases:
        _line(console, "  the rest is not shown: the requests of these phases are others than those of the first tokens")


def _quantiles(latency: Latency) -> str:
    parts = [] if latency.mean is None else [f"mean {_seconds(latency.mean)}"]
    for q, value in latency.quantiles.items():
        at_least = "at least " if q in latency.beyond else ""
        parts.append(f"P{float(q) * 100:g} {at_least}{_seconds(value)}")
    return f"{', '.join(parts)} ({latency.count:.0f} requests)"


def _seconds(value: float) -> str:
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s"


def _advice(console: Console, found: Diagnosis) -> None:
    console.print()
    if not found.advice:
        _line(console, "Nothing to change: no symptom of the table holds.", "bold")
        return
    _line(console, "What to do", "bold")
    for rank, row in enumerate(found.advice, 1):
        _line(console, f"  {rank}. {row.symptom}", "bold")
        _line(console, f"     Likely: {row.cause}.")
        if row.because:
            _line(console, f"     Seen: {', '.join(row.because)}.")
        _line(console, f"     Why: {row.why}")
        if row.action:
            _line(console, f"     Do: {row.action}")
        for flag in row.flags:
            _line(console, f"       {flag}")
    if any(row.flags for row in found.advice):
        checked = CHECKED.get(found.engine)
        if checked and checked != found.version:
            release = f" of {found.engine} {found.version}" if found.version else ""
            _line(console, f"     (flags looked up in {found.engine} {checked}; `--help`{release} decides)", "dim")
