"""A scenario as a recording folder, made on the model's own clock: what `replay` and the end-to-end tests read.

Out: tNNN.prom, gpu.jsonl, host.jsonl (one line a second) and meta.json with the truth, in the format of recordings
of real servers.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llm_exporter.demo.scenarios import Scenario
from llm_exporter.demo.simulation import Simulation

_WALL_AT = 1_790_000_000.0  # unix time of the model's second 0: recordings of one scenario and seed are equal, byte by byte


def write_recording(
    scenario: Scenario,
    engine: str,
    seconds: float,
    step: float,
    out: Path,
    *,
    release: str = "",
    seed: int = 1,
    skip: float = 0.0,
) -> Simulation:
    """Play a scenario and write what an observer would have seen.

    Args:
        scenario: one of `scenarios.SCENARIOS`.
        engine: vllm or sglang.
        seconds: length of the recording.
        step: seconds between pages, whole seconds.
        out: folder, made if it is not there.
        release: version of the engine; the newest known by default.
        seed: of all randomness.
        skip: the recording begins so many seconds after the model, so that it need not begin on an empty server.

    Returns:
        The simulation as it stands at the end; its `truth_between` takes model seconds, recording second 0 is `skip`.
    """
    simulation = Simulation(engine, scenario, release=release, seed=seed, wall_at=_WALL_AT)
    out.mkdir(parents=True, exist_ok=True)
    if skip:
        simulation.advance(skip - 1.0)
        simulation.gpu_records()
        simulation.host_record()
    with (out / "gpu.jsonl").open("w") as gpu, (out / "host.jsonl").open("w") as host:
        for second in range(round(seconds) + 1):
            simulation.advance(skip + second)
            for record in simulation.gpu_records():
                gpu.write(json.dumps(record) + "\n")
            host.write(json.dumps(simulation.host_record()) + "\n")
            if second % round(step) == 0:
                (out / f"t{second:03d}.prom").write_text(simulation.metrics_text())
    (out / "meta.json").write_text(json.dumps(_meta(simulation, seconds, skip), indent=1) + "\n")
    return simulation


def _meta(simulation: Simulation, seconds: float, skip: float) -> dict[str, Any]:
    """What was done and what was true; the longest phase gives `truth`, `accept` and `never`."""
    scenario = simulation.scenario
    phases = []
    for phase in scenario.side(simulation.kind).phases:
        start, end = max(0.0, phase.start - skip), min(seconds, phase.end - skip)
        if end > start:
            true = simulation.truth_between(skip + start, skip + end).as_dict()
            phases.append(asdict(phase) | {"start": start, "end": end, "truth": true})
    longest = max(phases, key=lambda phase: phase["end"] - phase["start"], default=None)
    hardware = simulation.engine.hardware
    return {
        "scenario": scenario.name,
        "note": scenario.summary,
        "truth": longest["causes"][0] if longest else "unknown",
        "accept": list(longest["causes"]) if longest else [],
        "never": list(longest["never"]) if longest else [],
        "seconds": seconds,
        "cores": simulation.engine.conditions.cores,
        "engine": f"{simulation.kind} {simulation.release} (simulated)",
        "gpu": hardware.gpu_name,
        "model": simulation.model_name,
        "phases": phases,
        "truth_values": simulation.truth_between(skip, skip + seconds).as_dict(),
    }
