"""The GPU below a simulated server: what NVML and GPM would say, from what the engine's steps do.

Out: dicts in the format of a recording's gpu.jsonl (NVML's own units, GPM in %), which `llm_exporter.hardware` turns
into readings.
The shares per kind of work are means measured on an H200: arithmetic of a prefill, memory streaming of a decode, and
all-reduces.
"""

# ruff: noqa: D102, ARG002 - the methods of an Observer are described there and take what it passes
from __future__ import annotations

from typing import Any, NamedTuple

from llm_exporter.demo.model import Engine
from llm_exporter.demo.request import Observer, Step

_MIB = 1 << 20
SW_POWER_CAP, IDLE = 0x4, 0x1


class _Mix(NamedTuple):
    """What one kind of work does to the card while it runs: shares of peak; watts as a share of idle…limit."""

    sm: float
    occupancy: float
    tensor: float
    dram: float
    power: float


_COMPUTE = _Mix(sm=0.97, occupancy=0.13, tensor=0.86, dram=0.20, power=0.98)
_MEMORY = _Mix(sm=0.74, occupancy=0.12, tensor=0.10, dram=0.66, power=0.68)
_COMMUNICATION = _Mix(sm=0.45, occupancy=0.05, tensor=0.0, dram=0.08, power=0.35)
_FOREIGN = _Mix(sm=0.80, occupancy=0.13, tensor=0.70, dram=0.20, power=0.95)
_TENSOR_PER_SEQUENCE = 0.0015  # a larger decode batch gives the tensor cores more to do for the same bytes


class SimulatedGpu(Observer):
    """The cards of one engine.

    Args:
        engine: drives them; the object adds itself to its observers.
        first_index: NVML index of the first card.
        wall_at: unix time that belongs to the model's time 0.
        pid: process that holds the memory.
    """

    def __init__(self, engine: Engine, *, first_index: int = 0, wall_at: float = 0.0, pid: int = 4102) -> None:
        self._engine = engine
        self._first = first_index
        self._wall_at = wall_at
        self._pid = pid
        self._busy = [0.0, 0.0, 0.0, 0.0]  # seconds of compute, memory, communication; and Σ memory seconds × batch
        self._before = list(self._busy)
        self._read_at = engine.now
        self._energy_joules = 1.0e5
        self._throttled_seconds = 0.0
        self._temperature = 34.0
        engine.observers.append(self)

    def step_ended(self, step: Step, now: float) -> None:
        busy = self._busy
        busy[0] += step.compute_seconds
        busy[1] += step.memory_seconds
        busy[2] += step.communication_seconds
        busy[3] += step.memory_seconds * step.decodes

    def _shares(self, now: float) -> tuple[float, float, float, float]:
        """Shares of compute, memory and communication since the last record, and the mean decode batch."""
        busy = list(self._busy)
        step = self._engine.step
        if step is not None and step.seconds > 0:
            done = min(1.0, (now - step.started_at) / step.seconds)
            busy[0] += step.compute_seconds * done
            busy[1] += step.memory_seconds * done
            busy[2] += step.communication_seconds * done
            busy[3] += step.memory_seconds * step.decodes * done
        passed = max(1e-6, now - self._read_at)
        moved = [max(0.0, new - old) for new, old in zip(busy, self._before, strict=True)]
        self._before = busy
        self._read_at = now
        batch = moved[3] / moved[1] if moved[1] else 0.0
        scale = 1.0 / max(passed, sum(moved[:3]))
        return moved[0] * scale, moved[1] * scale, moved[2] * scale, batch

    def records(self, now: float) -> list[dict[str, Any]]:
        """One line per card; activity is the mean since the call before. Empty for a server on CPU."""
        hardware, conditions = self._engine.hardware, self._engine.conditions
        if not hardware.gpus:
            return []
        passed = now - self._read_at
        compute, memory, communication, batch = self._shares(now)
        foreign = conditions.foreign_share
        own = 1.0 - foreign  # the engine's steps already take longer by what the other process gets
        kinds = [(compute * own, _COMPUTE), (memory * own, _MEMORY), (communication * own, _COMMUNICATION)]
        graphics = compute + memory + communication
        if foreign:
            alone = max(0.0, 1.0 - graphics)
            kinds.append((graphics * foreign + alone * 0.95, _FOREIGN))
            graphics += alone * 0.95
        sm = sum(share * kind.sm for share, kind in kinds)
        tensor = sum(share * kind.tensor for share, kind in kinds) + memory * own * min(0.3, batch * _TENSOR_PER_SEQUENCE)
        idle, limit = hardware.power_idle_watts, hardware.power_limit_watts
        power = idle + (limit - idle) * sum(share * kind.power for share, kind in kinds) * conditions.clock_ratio
        capped = power > 0.93 * limit
        bits = conditions.throttle_reason | (SW_POWER_CAP if capped else 0) | (IDLE if graphics < 0.01 else 0)
        clock = hardware.clock_mhz * conditions.clock_ratio * (1.0 - 1.6 * max(0.0, power / limit - 0.85))
        self._energy_joules += power * passed
        if conditions.throttle_reason:
            self._throttled_seconds += passed
        self._temperature += (34.0 + 26.0 * power / limit - self._temperature) * min(1.0, passed / 8.0)
        percent = {
            "graphics": graphics,
            "sm": sm,
            "occupancy": sum(share * kind.occupancy for share, kind in kinds),
            "any_tensor": tensor,
            "hmma": tensor,
            "dram_bw": sum(share * kind.dram for share, kind in kinds),
            "fp64": 0.0,
            "fp32": graphics * 0.008,
            "fp16": graphics * 0.0003,
        }
        gpm = {name: round(100.0 * min(1.0, value), 3) for name, value in percent.items()}
        gpm |= {"pcie_tx_mib": round(0.4 + 10 * graphics, 3), "pcie_rx_mib": round(0.3 + 60 * graphics, 3)}
        gpm |= {"nvlink_rx_mib": round(90_000 * communication, 1), "nvlink_tx_mib": round(90_000 * communication, 1)}
        processes = [{"pid": self._pid, "mem": hardware.memory_used_bytes - 600 * _MIB}]
        if foreign:
            processes.append({"pid": 7772, "mem": 874 * _MIB})
        record: dict[str, Any] = {
            "t": self._wall_at + now,
            "util": round(100 * min(1.0, graphics)),
            "mem_util": round(gpm["dram_bw"]),
            "used": hardware.memory_used_bytes,
            "total": hardware.memory_bytes,
            "power_mw": round(power * 1e3),
            "limit_mw": round(limit * 1e3),
            "sm_mhz": round(clock),
            "sm_max_mhz": hardware.clock_mhz,
            "throttle": bits,
            "throttled_seconds": {"hw_thermal_slowdown": round(self._throttled_seconds, 3)},
            "temp": round(self._temperature),
            "energy_mj": round(self._energy_joules * 1e3),
            "procs": processes,
            "gpm": gpm,
        }
        return [
            record
            | {
                "gpu": str(index),
                "uuid": f"GPU-00000000-0000-4000-8000-{index:012d}",
                "name": hardware.gpu_name,
                "driver": "simulated",
            }
            for index in range(self._first, self._first + hardware.gpus)
        ]
