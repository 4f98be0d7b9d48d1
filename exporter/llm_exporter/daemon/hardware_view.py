"""What GPUs and host say about one target at one tick: the hardware half of a `TargetView`."""

from __future__ import annotations

from dataclasses import dataclass

from llm_exporter.signals.ramps import WORKING_DRAM, WORKING_POWER, WORKING_TENSOR
from llm_exporter.state.evidence import GpuEvidence, HostEvidence
from llm_exporter.state.hardware import HardwareState

# Whether the GPU works now is asked of the last seconds only: half a minute ago it did, or there would be no stall.
NOW_SECONDS = 8.0
# Two readings, so that the first scrape shows which sources there are.
LEAST_VIEW_SECONDS = 2.5


@dataclass(frozen=True, slots=True)
class HardwareView:
    """See `signals.model.TargetView`, whose fields these are."""

    gpu: GpuEvidence | None = None
    host: HostEvidence | None = None
    foreign_memory: float | None = None
    gpu_works: bool | None = None
    missing: tuple[str, ...] = ()


def hardware_view(state: HardwareState, target: str, now: float, seconds: float) -> HardwareView:
    """The view of one target over the last `seconds`; every part that is not known is None and named in `missing`.

    It reaches no further back than the engine's own evidence: a GPU that idled while its server loaded does not say that the host is slow.
    """
    seconds = max(seconds, LEAST_VIEW_SECONDS)
    gpus = state.gpus_of(target)
    evidence = state.gpu_window(gpus, seconds, now) if gpus else None
    gpu = evidence if evidence is not None and evidence.samples else None
    host_evidence = state.host_window(target, seconds, now)
    host = host_evidence if host_evidence.samples > 1 and "processes" not in host_evidence.missing else None
    missing = []
    if gpu is None:
        missing.append(_why_no_gpu(state, gpus, now))
    if host is None:
        missing.append(f"the server's processes ({host_evidence.missing.get('processes', 'not read yet')})")
    foreign = gpu.memory_by_owner.get("", 0.0) if gpu is not None and gpu.memory_by_owner else None
    return HardwareView(gpu, host, foreign, _works(state, gpus, now), tuple(missing))


def _why_no_gpu(state: HardwareState, gpus: tuple[str, ...], now: float) -> str:
    nvml = state.sources(now).get("nvml")
    if nvml is not None and not nvml.up:
        return f"readings of the GPU ({nvml.reason})"
    return "readings of the GPU" if gpus else "which GPU serves this target (set `gpus`)"


def _works(state: HardwareState, gpus: tuple[str, ...], now: float) -> bool | None:
    """Utilisation is not asked: a kernel that spins in a deadlock reads 100 %. Tensor pipes, memory traffic and power tell."""
    if not gpus:
        return None
    last = state.gpu_window(gpus, NOW_SECONDS, now)
    known = [
        (value, limit)
        for value, limit in ((last.tensor, WORKING_TENSOR), (last.dram, WORKING_DRAM), (last.power_ratio, WORKING_POWER))
        if value is not None
    ]
    return any(value >= limit for value, limit in known) if known else None
