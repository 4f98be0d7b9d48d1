"""The accuracy of the verdict as a Markdown document, and the verdict on bare GPU readings under known loads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from llm_exporter.daemon.accuracy import Run
from llm_exporter.hardware import GpuReading, gpu_reading_from_record
from llm_exporter.signals.bottleneck import CAUSES, Judgement, judge
from llm_exporter.signals.evidence import Evidence
from llm_exporter.state.evidence import gpu_evidence, weighted

HEADER = """# How often the verdict is right

Made by `python -m llm_exporter.daemon.accuracy`; do not edit. Every recording is played through the same pipeline as a live server. From
the tenth second on, each scrape ends a window of up to 30 s, which is judged by itself; the published verdict changes when two scrapes
agree. `accept` and `never` of each recording's meta.json say what counts as right, and what would be wrong.

**How to read it.** The recordings are few, of one machine and one release of vLLM, and thresholds marked `h200` in
`exporter/llm_exporter/signals/ramps.py` were set or confirmed on the very same recordings: the figures say that the method holds together,
not that it is as good on other loads. The other ways of playing them and the bare GPU loads below are the nearest thing to unseen data.
"""

SIMULATED = """## Simulated servers

The project's own simulation (queueing, batching, KV cache, GPU and host of both engines), scraped every five seconds; each scenario begins
with healthy load and turns into its trouble. Nobody set a threshold on it, but it is a model and no server: it tests that the verdict
follows a change, and that both engines are read alike. A window of 30 s needs up to 30 s to forget the situation before.
"""

# What each program of h200-workloads.json did, and the verdicts that would be right if it were an engine with work all the time.
WORKLOADS: Mapping[str, tuple[str, frozenset[str]]] = {
    "idle": ("nothing", frozenset({"idle"})),
    "matmul": ("large matrix products, as in prefill", frozenset({"prefill_compute"})),
    "memory": ("streaming weights, as in decode", frozenset({"decode_memory"})),
    "launch_eager": ("tiny kernels, one by one", frozenset({"host_starved", "launch_bound"})),
    "launch_graph": ("tiny kernels in a CUDA graph", frozenset({"launch_bound", "none"})),
    "starved20": ("work 20 % of the time, host code between", frozenset({"host_starved"})),
    "starved50": ("work 50 % of the time", frozenset({"host_starved"})),
    "starved80": ("work 80 % of the time", frozenset({"host_starved", "none", "prefill_compute"})),
    "h2d": ("copies from the host", frozenset({"host_starved"})),
}


class Loaded(NamedTuple):
    """The verdict on one load, with GPM and with NVML alone."""

    name: str
    what: str
    accept: frozenset[str]
    utilization: float
    fine: Judgement
    coarse: Judgement


def evidence_of(readings: Sequence[GpuReading], *, work: float, gpm: bool) -> Evidence:
    """Evidence of an engine that had work for this share of the time on a GPU that read so; its thread spins, as engines' do."""
    window = weighted(readings, readings[0].at - 1.0, readings[-1].at)
    gpu = gpu_evidence({"0": window}, top_clock_hertz={"0": 1980e6})
    busy = gpu.graphics if gpm else gpu.utilization
    throttled = [share for reason, share in (gpu.throttled or {}).items() if reason != "sw_power_cap"]
    return Evidence(
        seconds=30.0,
        work=work,
        busy=busy,
        busy_from="gpm" if gpm else "nvml",
        sm=gpu.sm if gpm else None,
        tensor=gpu.tensor if gpm else None,
        dram=gpu.dram if gpm else None,
        power=gpu.power_ratio,
        clock=gpu.clock_ratio,
        throttled=max(throttled, default=0.0),
        gpus=1,
        hot=1.0 if work else 0.0,
        run_delay=0.0,
        cfs=0.0,
        psi=0.0,
        api_share=0.0,
        queue_share=0.0,
        waiting_share=0.0,
        kv_usage=0.3,
        preemptions=0.0,
    )


def loads(path: Path) -> list[Loaded]:
    """The verdict on every load of the file."""
    found = []
    for name, rows in json.loads(path.read_text()).items():
        what, accept = WORKLOADS[name]
        readings = [gpu_reading_from_record(row) for row in rows]
        work = 0.0 if name == "idle" else 1.0
        fine, coarse = evidence_of(readings, work=work, gpm=True), evidence_of(readings, work=work, gpm=False)
        found.append(Loaded(name, what, accept, coarse.busy or 0.0, judge(fine), judge(coarse)))
    return found


def markdown(runs: Mapping[str, Sequence[Run]], workloads: Path | None = None, simulated: Sequence[Run] = ()) -> str:
    """The document."""
    recorded = list(runs["as recorded"])
    parts = [HEADER, _summary(recorded), _per_recording(recorded), _confusion(recorded), _ways(runs), _mistakes(runs)]
    if workloads is not None:
        parts.append(_loads(loads(workloads)))
    if simulated:
        parts += [SIMULATED, _per_recording(simulated, "### By scenario and engine"), _confusion(simulated, "### Confusion matrix")]
        parts.append(_mistakes({"simulated": simulated}, "### Wrong windows"))
    return "\n".join(part for part in parts if part)


def _summary(recorded: Sequence[Run]) -> str:
    counted = sum(len(run.counted) for run in recorded)
    right, finals = sum(run.right for run in recorded), sum(run.final_right for run in recorded)
    violations = sum(len(run.violations) for run in recorded)
    starved = [run for run in recorded if run.truth.name == "host_starved"]
    times = [run.first_right for run in starved if run.first_right is not None]
    found = f"{len(times)} of {len(starved)}" + (f", the slowest {max(times):.0f} s after the recording began" if times else "")
    return (
        "## In short\n\n"
        f"- {len(recorded)} recordings, {counted} windows: **{_percent(right, counted)}** of the windows judged right, "
        f"{finals} of {len(recorded)} final verdicts right.\n"
        f"- Verdicts that must never appear (a healthy server called starved, stalled, …): **{violations}**.\n"
        f"- Starved situations found: {found}. A first verdict takes 10 s of readings and two scrapes that agree.\n"
    )


def _per_recording(recorded: Sequence[Run], title: str = "## By recording") -> str:
    lines = [
        f"{title}\n",
        "| recording | truth | accepted | windows right | final verdict | confidence | first right after | forbidden verdicts |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {run.name} | {run.truth.name} | {', '.join(sorted(run.truth.accept))} | {run.right} of {len(run.counted)} | "
        f"{run.final}{'' if run.final_right else ' ✗'} | {_ratio(run.confidence)} | {_seconds(run.first_right)} | {len(run.violations)} |"
        for run in recorded
    ]
    return "\n".join(lines) + "\n"


def _confusion(recorded: Sequence[Run], title: str = "## Confusion matrix, window by window") -> str:
    counts: dict[str, Counter[str]] = {}
    accept: dict[str, set[str]] = {}
    for run in recorded:
        for window in run.counted:
            counts.setdefault(window.truth.name, Counter())[window.judged] += 1
            accept.setdefault(window.truth.name, set()).update(window.truth.accept)
    columns = [cause for cause in CAUSES if any(row[cause] for row in counts.values())]
    lines = [
        f"{title}\n",
        "Rows are what was true, columns what was judged. Bold: among the accepted verdicts of that situation.\n",
        "| truth | " + " | ".join(columns) + " | right |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for truth in sorted(counts):
        row = counts[truth]
        cells = [f"**{row[c]}**" if row[c] and c in accept[truth] else str(row[c] or "") for c in columns]
        right = sum(w.judged in w.truth.accept for run in recorded for w in run.counted if w.truth.name == truth)
        lines.append(f"| {truth} | {' | '.join(cells)} | {_percent(right, sum(row.values()))} |")
    return "\n".join(lines) + "\n"


def _ways(runs: Mapping[str, Sequence[Run]]) -> str:
    lines = [
        "## Played in other ways\n",
        "Each leaves the truth as it is. *Unsaid* windows were judged unknown: with less to go by, that is the honest answer.\n",
        "| way | recordings | windows | right | unsaid | wrong | final right | final unknown | final wrong | forbidden verdicts |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for way, played in runs.items():
        counted = sum(len(run.counted) for run in played)
        right, unsaid = sum(run.right for run in played), sum(run.unsaid for run in played)
        finals = sum(run.final_right for run in played)
        silent = sum(run.final == "unknown" and not run.final_right for run in played)
        lines.append(
            f"| {way} | {len(played)} | {counted} | {_percent(right, counted)} | {_percent(unsaid, counted)} | "
            f"{_percent(counted - right - unsaid, counted)} | {finals} | {silent} | {len(played) - finals - silent} | "
            f"{sum(len(run.violations) for run in played)} |"
        )
    return "\n".join(lines) + "\n"


def _mistakes(runs: Mapping[str, Sequence[Run]], title: str = "## Wrong windows") -> str:
    lines = []
    for way, played in runs.items():
        for run in played:
            wrong = [w for w in run.counted if w.judged not in w.truth.accept and w.judged != "unknown"]
            if wrong:
                seen = ", ".join(f"{cause} ×{n}" for cause, n in Counter(w.judged for w in wrong).most_common())
                when = f"{_seconds(wrong[0].second)} to {_seconds(wrong[-1].second)}"
                both = f"{sum(w.turning for w in wrong)} of {len(wrong)}"
                lines.append(f"| {way} | {run.name} | {run.truth.name} | {seen} | {when} | {both} |")
    if not lines:
        return f"{title}\n\nNone.\n"
    head = [f"{title}\n", "| way | recording | truth | judged | when | hold the situation before |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *lines]) + "\n"


def _loads(found: Sequence[Loaded]) -> str:
    lines = [
        "## Bare loads on the GPU\n",
        "An H200 under programs that do one thing, judged as if an engine had work all the time (`idle`: none), its thread spinning.\n",
        "| load | what runs | NVML utilisation | verdict with GPM | gap | NVML alone | accepted |",
        "|---|---|---|---|---|---|---|",
    ]
    for load in found:
        mark = "" if load.fine.cause in load.accept else " ✗"
        lines.append(
            f"| {load.name} | {load.what} | {100 * load.utilization:.0f} % | {load.fine.cause}{mark} | {_ratio(load.fine.gap)} | "
            f"{load.coarse.cause}{f' ({load.coarse.hint})' if load.coarse.hint else ''} | {', '.join(sorted(load.accept))} |"
        )
    return "\n".join(lines) + "\n"


def _percent(part: float, whole: float) -> str:
    return "–" if not whole else f"{100 * part / whole:.0f} %"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} s"
