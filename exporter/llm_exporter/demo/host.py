"""The host below a simulated server: CPU time of its processes and threads, run delay, cgroup throttling, pressure.

Out: dicts in the format of a recording's host.jsonl (ticks of 10 ms, schedstat nanoseconds), which
`llm_exporter.hardware` turns into readings. As in the real servers, the thread that drives the GPU spins while it
waits, so it shows a full core whenever there is work.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llm_exporter.demo.model import Engine


class _Process(NamedTuple):
    """One process: its title, and which of the model's activities its main thread carries ("" for none)."""

    offset: int
    comm: str
    command: str
    thread: str
    threads: int


_PROCESSES = {
    "vllm": (
        _Process(0, "python3", "/usr/bin/python3 -m vllm.entrypoints.openai.api_server", "frontend", 54),
        _Process(1, "VLLM::EngineCor", "VLLM::EngineCore", "engine", 105),
        _Process(2, "python3", "/usr/bin/python3 -B -c from multiprocessing.resource_tracker import main;main(45)", "", 1),
    ),
    "sglang": (
        _Process(0, "python3", "/usr/bin/python3 -m sglang.launch_server", "frontend", 48),
        _Process(1, "sglang::schedul", "sglang::scheduler", "engine", 96),
        _Process(2, "sglang::detoken", "sglang::detokenizer", "output", 12),
    ),
}
_PERIOD_SECONDS = 0.1  # CFS bandwidth period


class SimulatedHost:
    """The processes of one engine.

    Args:
        engine: what they do.
        kind: vllm or sglang.
        wall_at: unix time that belongs to the model's time 0.
        pid: of the front-end process; the others follow.
    """

    def __init__(self, engine: Engine, kind: str, *, wall_at: float = 0.0, pid: int = 4101) -> None:
        self._engine = engine
        self._kind = kind
        self._wall_at = wall_at
        self._pid = pid
        self._run = {"frontend": 21.0, "engine": 30.0, "output": 2.0, "": 0.06}
        self._wait = {"frontend": 0.003, "engine": 0.003, "output": 0.0, "": 0.0}
        self._periods = self._throttled_periods = 0.0
        self._throttled = self._pressure = 0.0
        self._read_at = engine.now
        self._frontend_before = engine.frontend_busy_seconds
        self._throttled_before = engine.throttled_seconds

    def record(self, now: float) -> dict[str, Any]:
        """One line; counters moved on by what happened since the call before."""
        engine, conditions = self._engine, self._engine.conditions
        passed = max(0.0, now - self._read_at)
        self._read_at = now
        frontend = min(engine.frontend_busy_seconds - self._frontend_before, passed)
        self._frontend_before += frontend  # a backlog is worked off later
        held = min(passed, engine.throttled_seconds - self._throttled_before)
        self._throttled_before += held
        working = bool(engine.running or engine.waiting) and not conditions.hung
        spins = passed if working or (self._kind == "sglang" and not conditions.hung) else 0.002 * passed
        available = max(0.0, spins - held)
        delay = conditions.run_delay
        waits = {"engine": available * delay, "frontend": frontend * delay / (1.0 - delay), "output": 0.1 * frontend * delay}
        runs = {"engine": available * (1.0 - delay), "frontend": frontend, "output": 0.3 * frontend, "": 0.0}
        for name, seconds in runs.items():
            self._run[name] += seconds
        for name, seconds in waits.items():
            self._wait[name] += seconds
        self._pressure += min(passed, max(waits.values()) + held)
        if conditions.quota_cores is not None:
            self._periods += passed / _PERIOD_SECONDS
            self._throttled_periods += (passed if held > 0.01 * passed else 0.0) / _PERIOD_SECONDS
            self._throttled += 2 * held  # summed over the two busy threads
        used = sum(self._run.values())
        cpu_stat = (
            f"usage_usec {used * 1e6:.0f}\nuser_usec {used * 0.93e6:.0f}\nsystem_usec {used * 0.07e6:.0f}\nnice_usec 0\n"
            f"nr_periods {int(self._periods)}\nnr_throttled {int(self._throttled_periods)}\n"
            f"throttled_usec {self._throttled * 1e6:.0f}\nnr_bursts 0\nburst_usec 0\n"
        )
        cpus = float(conditions.cores)
        if conditions.quota_cores is not None:
            cpus = min(cpus, conditions.quota_cores)
        return {
            "t": self._wall_at + now,
            "procs": [self._process(process, cpu_stat) for process in _PROCESSES[self._kind]],
            "pressure_cpu": f"some avg10=0.00 avg60=0.00 avg300=0.00 total={self._pressure * 1e6:.0f}\n"
            "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
            "loadavg": f"{sum(runs.values()) / passed if passed else 0:.2f} 1.00 1.00 3/373 1160\n",
            "cpu_stat": cpu_stat,
            "cpus": cpus,
            "stat": ["cpu", f"{used * 93:.0f}", "0", f"{used * 7:.0f}", f"{now * 1600:.0f}", "439", "0", "841", "36", "0", "0"],
        }

    def _process(self, process: _Process, cpu_stat: str) -> dict[str, Any]:
        pid = self._pid + process.offset
        run, wait = self._run[process.thread], self._wait.get(process.thread, 0.0)
        rows = [_thread(pid, process.comm, run, wait)]
        if process.thread:
            rows.append(_thread(pid + 40, process.comm, 0.15, 0.0))
        return {
            "pid": pid,
            "started": 123456,
            "cgroup": f"/demo/{self._kind}",
            "cgroup_cpu_stat": cpu_stat,
            "comm": process.comm,
            "cmd": process.command,
            "nthreads": process.threads,
            "affinity": self._engine.conditions.cores,
            "threads": rows,
        }


def _thread(tid: int, comm: str, run: float, wait: float) -> dict[str, Any]:
    return {
        "tid": tid,
        "comm": comm,
        "utime": int(run * 97),
        "stime": int(run * 3),
        "run_ns": int(run * 1e9),
        "wait_ns": int(wait * 1e9),
    }
