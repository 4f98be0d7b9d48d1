"""GPUs of this machine in the daemon: what is said when one is lost, and how often they are looked at."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fakes.nvml import FakeNvml
from llm_exporter.daemon.machine import Machine
from llm_exporter.daemon.published import declared
from llm_exporter.expose.page import Page
from llm_exporter.sources.nvml import NvmlReader

CASES = Path(__file__).parents[2] / "fixtures" / "cases"


def test_nvml_04_a_lost_gpu_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    nvml = FakeNvml(CASES / "NVML-04" / "nvml.json", lambda: now)
    machine = Machine(Page(declared(), lambda: now), lambda *_: None, NvmlReader(load=lambda: nvml, proc=Path("/nowhere")))
    with caplog.at_level(logging.INFO, "llm_exporter.machine"):
        for second in range(60):
            now = float(second)
            machine.read_gpus(now)
    (line,) = [record for record in caplog.records if record.name == "llm_exporter.machine"]
    assert line.getMessage().startswith("GPU 2 does not answer")
    assert line.reason == "gpu_lost"  # type: ignore[attr-defined]
