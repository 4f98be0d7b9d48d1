"""Every threshold of the verdict, in one table. Each turns a measurement into a membership from 0 to 1.

`up` rises from 0 at `low` to 1 at `high`; `down` falls. Origin: "design" are the values of the design's worked examples; "h200" were set or
confirmed on recordings of a real H200 (docs/verdict-accuracy.md), by the kind of situation and not by the file; "field" come from field cases.
"""

from __future__ import annotations

from typing import NamedTuple


class Ramp(NamedTuple):
    """One threshold: `rising` memberships grow with the value."""

    low: float
    high: float
    rising: bool
    meaning: str
    origin: str = "design"

    def of(self, value: float | None) -> float | None:
        """Membership of a value; None where the value is not known."""
        if value is None:
            return None
        share = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        return share if self.rising else 1.0 - share


def _up(low: float, high: float, meaning: str, origin: str = "design") -> Ramp:
    return Ramp(low, high, True, meaning, origin)


def _down(low: float, high: float, meaning: str, origin: str = "design") -> Ramp:
    return Ramp(low, high, False, meaning, origin)


# fmt: off
RAMPS: dict[str, Ramp] = {
    # work and the gap
    "work_is_idle":      _down(0.05, 0.30, "share of time with work that counts as idle"),
    "busy_is_idle":      _down(0.05, 0.30, "share of time with the GPU active that counts as idle"),
    "work":              _up(0.30, 0.70, "share of time with work that makes a GPU verdict possible"),
    "busy":              _up(0.70, 0.90, "share of time with the GPU active that counts as busy"),
    "gap":               _up(0.10, 0.40, "share of time in which the engine had work and the GPU nothing"),
    "gap_gate":          _up(0.08, 0.25, "gap below which nothing is starved"),
    "demand":            _up(1.50, 4.00, "mean batch from which a low utilisation is strange", "field"),
    "gap_with_cause":    _up(0.05, 0.15, "gap that counts where the host is seen to be short", "h200"),
    # host
    "run_delay":         _up(0.02, 0.15, "share of time in which the engine's thread waited for a core"),
    "cfs":               _up(0.02, 0.20, "share of throttled periods of the CPU quota"),
    "psi":               _up(0.05, 0.30, "share of time in which a runnable task waited for a CPU"),
    "hot":               _up(0.80, 0.97, "share of one core used by the busiest thread; proves nothing alone"),
    "api_share":         _up(0.15, 0.50, "frontend's share of the time to first token"),
    "stage":             _up(0.10, 0.35, "share of time in scheduler stages with nothing on the GPU"),
    "run_delay_strong":  _up(0.10, 0.30, "run delay that alone explains a gap", "h200"),
    "cfs_strong":        _up(0.20, 0.50, "throttling that alone explains a gap", "h200"),
    # GPU
    "power_low":         _down(0.35, 0.65, "power ÷ limit that says the GPU is not working hard"),
    "sm_low":            _down(0.35, 0.65, "share of SMs with work"),
    "dram_low":          _down(0.20, 0.45, "share of memory bandwidth"),
    "launch_power_low":  _down(0.35, 0.60, "power ÷ limit of a GPU that runs tiny kernels"),
    "throttled":         _up(0.10, 0.50, "share of readings with a reason that slows the clocks"),
    "clock_low":         _down(0.80, 0.95, "SM clock ÷ highest"),
    "dram_high":         _up(0.35, 0.65, "share of memory bandwidth of healthy decode"),
    "tensor_idle":       _down(0.15, 0.40, "tensor pipes of healthy decode"),
    "tensor_high":       _up(0.20, 0.50, "tensor pipes of prefill"),
    "power_high":        _up(0.60, 0.90, "power ÷ limit of prefill"),
    "tensor_low":        _down(0.10, 0.30, "tensor pipes while waiting for other GPUs"),
    "nvlink":            _up(0.10, 0.35, "share of the links' bandwidth"),
    "imbalance":         _up(0.10, 0.30, "spread of activity between the GPUs of one server"),
    # engine
    "queue_share":       _up(0.30, 0.60, "queue's share of the time to first token", "h200"),
    "waiting_share":     _up(0.30, 0.90, "share of scrapes in which requests waited for room"),
    "queue_no_gap":      _down(0.20, 0.40, "gap above which a queue is the effect and not the cause", "h200"),
    "kv_usage":          _up(0.80, 0.92, "use of the KV cache of the fullest rank"),
    "kv_waiting":        _up(0.10, 0.50, "share of scrapes with waiting requests that makes a full cache a limit"),
    "preemptions":       _up(0.005, 0.02, "preemptions per started request that make a full cache a limit"),
    "frontend_share":    _up(0.30, 0.60, "frontend's share of the time to first token that makes it the limit", "h200"),
    "frontend_seconds":  _up(0.08, 0.25, "frontend's mean time per request that a user feels", "h200"),
    "api_busy":          _up(0.50, 0.70, "share of one core used by the busiest thread of the API server", "h200"),
    "gpu_free":          _up(0.15, 0.35, "share of time without GPU activity", "h200"),
    # others
    "foreign_memory":    _up(640e6, 900e6, "bytes of GPU memory held by processes of nobody's: more than an idle CUDA context", "h200"),
    "still":             _up(4.0, 10.0, "seconds without any movement though there is work, on a GPU that does nothing", "h200"),
    "not_still":         _down(3.0, 8.0, "seconds of stillness that forbid to speak of starvation", "h200"),
}
# fmt: on

# A GPU that shows this much of any of these works, whatever its utilisation says: a kernel that spins in a deadlock shows none of it.
WORKING_TENSOR = 0.05
WORKING_DRAM = 0.05
WORKING_POWER = 0.35

# SW power cap is normal under tensor load (an H200 runs big matmuls at 76 % of its clock); below this it costs.
POWER_CAP_CLOCK = 0.70
BENIGN_REASONS = frozenset({"sw_power_cap", "applications_clocks_setting", "display_clock_setting", "sync_boost"})

# Why the cause of a gap is believed, one against another (SIGNALS 4.3): a spinning thread is weak, a quota strong.
CAUSE_STRENGTH = {
    "run_delay": 1.0,
    "cfs_throttling": 1.0,
    "scheduler_stages": 1.0,
    "cpu_pressure": 0.8,
    "frontend_share": 0.8,
    "hot_thread": 0.5,
}

# The top class needs this score, and this distance to the next of its kind.
SCORE_LIMIT = 0.6
MARGIN_LIMIT = 0.1
FULL_MARGIN = 0.25
COVERAGE_LIMIT = 0.5

EVIDENCE_SECONDS = 30.0
LEAST_SECONDS = 10.0
