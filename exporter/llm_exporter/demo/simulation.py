"""One simulated server as a whole: model, page, truth, GPU and host, and what a scenario changes in them over time.

`Simulation.advance(now)` is all that drives it; `live.py` does so by the clock, tests and `recording.py` as fast as
they can.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

from llm_exporter.demo.gpu import SimulatedGpu
from llm_exporter.demo.hardware import PRESETS, Conditions
from llm_exporter.demo.host import SimulatedHost
from llm_exporter.demo.model import Engine
from llm_exporter.demo.pages_sglang import SglangPage
from llm_exporter.demo.pages_vllm import VllmPage
from llm_exporter.demo.scenarios import Scenario
from llm_exporter.demo.scheduling import SglangEngine, VllmEngine
from llm_exporter.demo.traffic import PoissonTraffic
from llm_exporter.demo.truth import Truth, TruthLog

MODELS = {"vllm": "meta-llama/Llama-3.1-8B-Instruct", "sglang": "Qwen/Qwen3-8B"}
LATEST = {"vllm": "0.32.0", "sglang": "0.5.23"}


class Simulation:
    """One server.

    Args:
        kind: vllm or sglang.
        scenario: its load and what happens to it.
        release: version to speak as; the newest known by default.
        seed: of all randomness.
        wall_at: unix time that belongs to the model's time 0.
        gpu_index: NVML index of its first card.
        pid: of its front-end process.
    """

    def __init__(
        self,
        kind: str,
        scenario: Scenario,
        *,
        release: str = "",
        seed: int = 1,
        wall_at: float = 0.0,
        gpu_index: int = 0,
        pid: int = 4101,
    ) -> None:
        self.kind = kind
        self.scenario = scenario
        self.release = release or LATEST[kind]
        self.model_name = MODELS[kind]
        self.wall_at = wall_at
        side = scenario.side(kind)
        hardware = replace(PRESETS[side.hardware], **side.overrides)
        seed = zlib.crc32(f"{kind} {scenario.name} {seed}".encode())
        self.traffic = PoissonTraffic(side.load, block_tokens=hardware.block_tokens, context_tokens=hardware.context_tokens, seed=seed)
        conditions = Conditions()
        self.engine: Engine
        self.page: VllmPage | SglangPage
        if kind == "vllm":
            self.engine = VllmEngine(hardware, conditions, self.traffic, queue_limit=side.queue_limit)
            self.page = VllmPage(self.engine, self.release, model=self.model_name, wall_at=wall_at)
        else:
            self.engine = SglangEngine(hardware, conditions, self.traffic, queue_limit=side.queue_limit)
            self.page = SglangPage(self.engine, self.release, model=self.model_name, wall_at=wall_at, pid=pid + 1)
        self.truth = TruthLog(self.engine)
        self.gpu = SimulatedGpu(self.engine, first_index=gpu_index, wall_at=wall_at, pid=pid + 1)
        self.host = SimulatedHost(self.engine, kind, wall_at=wall_at, pid=pid)
        self._changes = list(side.changes)
        self._next_sample = 1.0

    @property
    def now(self) -> float:
        """The model's clock, seconds since its start."""
        return self.engine.now

    def advance(self, now: float) -> None:
        """Run the model up to `now`; the scenario's changes and the truth samples come at their own times."""
        while True:
            change_at = self._changes[0].at if self._changes else now + 1.0
            at = min(change_at, self._next_sample)
            if at > now:
                break
            self.engine.advance(at)
            if change_at <= self._next_sample:
                self._changes.pop(0).apply(self.engine, self.traffic)
            else:
                self.truth.sample(at)
                self._next_sample += 1.0
        self.engine.advance(now)

    def metrics_text(self) -> str:
        """The /metrics page as it stands."""
        return self.page.render(self.engine.now)

    def gpu_records(self) -> list[dict[str, Any]]:
        """Lines of gpu.jsonl for now, one per card."""
        return self.gpu.records(self.engine.now)

    def host_record(self) -> dict[str, Any]:
        """A line of host.jsonl for now."""
        return self.host.record(self.engine.now)

    def truth_between(self, start: float, end: float) -> Truth:
        """What was true between two moments of the model's clock."""
        return self.truth.window(start, end)
