"""How often the verdict is right: recordings with known truth, played through the whole pipeline, judged window by window.

In: folders of recordings whose meta.json has `truth`, `accept` (verdicts that count as right) and `never` (those that would be wrong).
Out: a `Run` per recording and way of playing it. `python -m llm_exporter.daemon.accuracy DIR… --out F.md` writes the document.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from llm_exporter.config.model import Config, Target
from llm_exporter.daemon.replaying import Replay
from llm_exporter.errors import UsageError
from llm_exporter.recording import Recording, read_recording
from llm_exporter.signals.bottleneck import judge
from llm_exporter.signals.evidence import gather
from llm_exporter.signals.ramps import EVIDENCE_SECONDS, LEAST_SECONDS

# Two scrapes of the longest interval that is played.
SETTLING_SECONDS = 10.0
# Of the simulated scenarios: long enough for a quiet start and the trouble that follows.
SIMULATED_SECONDS, SIMULATED_SKIP = 90.0, 20.0
Rows = tuple[tuple[float, dict[str, Any]], ...]


class Truth(NamedTuple):
    """What was the case from second `start` to second `end` of a recording."""

    start: float
    end: float
    name: str
    accept: frozenset[str]
    never: frozenset[str]


class Judged(NamedTuple):
    """One window: what was judged of it, what stood published at its end, and what was true at its end.

    counts: at least ten seconds of it lie in that situation, as much as a first verdict takes. turning: it also holds another one.
    """

    second: float
    judged: str
    published: str
    truth: Truth
    counts: bool
    turning: bool


@dataclass(frozen=True, slots=True)
class Run:
    """One recording, played in one way."""

    name: str
    way: str
    windows: tuple[Judged, ...]
    truth: Truth
    final: str
    confidence: float | None
    first_right: float | None
    violations: tuple[Judged, ...] = field(default=())

    @property
    def counted(self) -> tuple[Judged, ...]:
        """Windows with enough of their situation."""
        return tuple(window for window in self.windows if window.counts)

    @property
    def right(self) -> int:
        """Counted windows whose judgement is accepted."""
        return sum(window.judged in window.truth.accept for window in self.counted)

    @property
    def unsaid(self) -> int:
        """Counted windows that were judged unknown where that is not the truth."""
        return sum(window.judged == "unknown" and "unknown" not in window.truth.accept for window in self.counted)

    @property
    def final_right(self) -> bool:
        """Whether what stood published at the end is accepted."""
        return self.final in self.truth.accept


def truths_of(meta: Mapping[str, Any], seconds: float) -> tuple[Truth, ...]:
    """The situations of a recording in order. A `stopped_after_s` divides it: before, healthy work; after, the truth.

    Raises:
        UsageError: meta.json has no truth.
    """
    if "truth" not in meta or "accept" not in meta:
        raise UsageError("meta.json has no `truth` and `accept`: the accuracy of this recording cannot be told")
    if phases := meta.get("phases"):
        return tuple(
            Truth(float(p["start"]), float(p["end"]), str(p["causes"][0]), frozenset(p["causes"]), frozenset(p.get("never") or ()))
            for p in phases
        )
    name, accept, never = str(meta["truth"]), frozenset(meta["accept"]), frozenset(meta.get("never") or ())
    stopped = meta.get("stopped_after_s")
    if stopped is None:
        return (Truth(0.0, seconds, name, accept, never),)
    healthy = frozenset({"none", "decode_memory", "prefill_compute"})
    return (Truth(0.0, float(stopped), "healthy work", healthy, frozenset({name})), Truth(float(stopped), seconds, name, accept, never))


def play(recording: Recording, way: str = "as recorded", settings: Mapping[str, Any] | None = None) -> Run:
    """Plays a recording and judges every tick from the tenth second on. `settings`: of the target, as in the configuration."""
    truths = truths_of(recording.meta, recording.moments[-1].second)
    target = Target.model_validate({"name": recording.name, "url": "http://recording.invalid", **(settings or {})})
    replay = Replay([recording], Config(targets=(target,)))
    pipeline = replay.pipelines[recording.name]
    windows = []
    final, confidence = "unknown", None
    for moment in recording.moments:
        replay.step(moment, recording.name)
        view = pipeline.view
        if view is None or view.decision is None:
            continue
        final, confidence = view.decision.cause, view.decision.confidence
        if moment.second >= LEAST_SECONDS:
            truth = next((t for t in reversed(truths) if t.start <= moment.second), truths[0])
            since = moment.second - truth.start
            turning = truth is not truths[0] and since < EVIDENCE_SECONDS
            windows.append(Judged(moment.second, judge(gather(view)).cause, final, truth, since >= LEAST_SECONDS, turning))
    last = windows[-1].truth if windows else truths[-1]
    right = [w.second - last.start for w in windows if w.truth is last and w.published in last.accept]
    violations = tuple(w for w in windows if {w.judged, w.published} & (w.truth.never - _past(w, truths)))
    return Run(recording.name, way, tuple(windows), last, final, confidence, right[0] if right else None, violations)


def _past(window: Judged, truths: Sequence[Truth]) -> frozenset[str]:
    """Verdicts that were right shortly before: the window still holds that, and a published verdict follows two scrapes later."""
    at = truths.index(window.truth)
    recent = at > 0 and window.second - window.truth.start < EVIDENCE_SECONDS + SETTLING_SECONDS
    return truths[at - 1].accept if recent else frozenset()


# -- ways of playing that leave the truth as it is -----------------------------------------------------------------------------------


def without_gpm(recording: Recording) -> Recording:
    """NVML alone: GPUs before Hopper, vGPU, some MIG."""
    return recording._replace(gpu=tuple((second, {k: v for k, v in row.items() if k != "gpm"}) for second, row in recording.gpu))


def without_host(recording: Recording) -> Recording:
    """The server's processes cannot be read; the GPU is named in the configuration instead."""
    return recording._replace(host=())


def without_gpu(recording: Recording) -> Recording:
    """A remote server: its page alone."""
    return recording._replace(gpu=(), host=())


def every_5_seconds(recording: Recording) -> Recording:
    """The daemon's own interval: the page nearest to each multiple of five seconds."""
    last = recording.moments[-1].second
    kept = {min(recording.moments, key=lambda m: abs(m.second - at)).second for at in (5.0 * n for n in range(int(last // 5) + 1))}
    return recording._replace(moments=tuple(m for m in recording.moments if m.second in kept))


def starting_later(recording: Recording) -> Recording:
    """Somebody began to watch four seconds later."""

    def later(rows: Rows) -> Rows:
        return tuple((second - 4.0, row) for second, row in rows if second >= 4.0)

    moments = tuple(m._replace(second=m.second - 4.0) for m in recording.moments if m.second >= 4.0)
    meta = dict(recording.meta)
    if meta.get("stopped_after_s") is not None:
        meta["stopped_after_s"] -= 4.0
    meta["phases"] = [{**p, "start": max(0.0, p["start"] - 4.0), "end": p["end"] - 4.0} for p in meta.get("phases") or ()]
    return recording._replace(moments=moments, gpu=later(recording.gpu), host=later(recording.host), meta=meta)


def every_other_reading(recording: Recording) -> Recording:
    """A slow machine: GPU and host are read every two seconds."""
    return recording._replace(gpu=recording.gpu[::2], host=recording.host[::2])


class Way(NamedTuple):
    """How a recording is changed, and the target's settings that go with it."""

    change: Callable[[Recording], Recording]
    settings: Mapping[str, Any] = MappingProxyType({})


WAYS: Mapping[str, Way] = {
    "as recorded": Way(lambda recording: recording),
    "scraped every 5 s": Way(every_5_seconds),
    "watched 4 s later": Way(starting_later),
    "readings every 2 s": Way(every_other_reading),
    "NVML without GPM": Way(without_gpm),
    "no host readings, GPU configured": Way(without_host, {"gpus": [0]}),
    "page alone (remote)": Way(without_gpu),
}


def recordings_in(folders: Sequence[Path]) -> list[Recording]:
    """The folders that are recordings, and the recordings directly in folders that are not.

    Raises:
        UsageError: nothing is found, or a recording cannot be read.
    """
    found = []
    for folder in folders:
        inside = [folder] if (folder / "meta.json").exists() else sorted(path.parent for path in folder.glob("*/meta.json"))
        if not inside:
            raise UsageError(f"{folder}: holds no recording (a folder with meta.json and tNNN.prom)")
        found += [read_recording(path) for path in inside]
    return found


def measure(recordings: Sequence[Recording]) -> dict[str, list[Run]]:
    """Way → a run per recording that it leaves long enough to judge."""
    return {
        name: [
            play(changed, name, way.settings)
            for recording in recordings
            if (changed := way.change(recording)).moments[-1].second >= LEAST_SECONDS
        ]
        for name, way in WAYS.items()
    }


def simulated(folder: Path) -> list[Recording]:
    """Recordings of the project's own simulated servers, every scenario on both engines, written below `folder`."""
    from llm_exporter.demo.recording import write_recording
    from llm_exporter.demo.scenarios import SCENARIOS

    found = []
    for scenario in SCENARIOS.values():
        for engine in ("vllm", "sglang") if scenario.name != "tour" else ():
            into = folder / f"{scenario.name}-{engine}"
            write_recording(scenario, engine, SIMULATED_SECONDS, 5.0, into, skip=SIMULATED_SKIP)
            found.append(read_recording(into))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the document; 1 where a recording's final verdict is not accepted or a forbidden one appears as recorded."""
    from llm_exporter.daemon.accuracy_text import markdown

    parser = argparse.ArgumentParser(prog="python -m llm_exporter.daemon.accuracy", description="Measure the accuracy of the verdict.")
    parser.add_argument("folders", nargs="+", type=Path, help="recordings, or folders of recordings")
    parser.add_argument("--out", type=Path, help="Markdown file; default: standard output")
    parser.add_argument("--workloads", type=Path, help="JSON of GPU readings under known loads")
    parser.add_argument("--simulated", action="store_true", help="judge the project's own simulated servers too")
    asked = parser.parse_args(arguments)
    runs = measure(recordings_in(asked.folders))
    made: list[Run] = []
    if asked.simulated:
        with tempfile.TemporaryDirectory() as folder:
            made = [play(recording) for recording in simulated(Path(folder))]
    text = markdown(runs, asked.workloads, made)
    if asked.out is None:
        print(text, end="")  # noqa: T201  a command
    else:
        asked.out.write_text(text)
    return 0 if all(run.final_right and not run.violations for run in runs["as recorded"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
