"""Time and memory of `llm-exporter report` against targets and weeks, on a real Prometheus filled with generated history.

Run: `.venv/bin/python bench/bench_report.py [TARGETSxWEEKS …]`. Prints one line a case: what the report needs, Prometheus' own not
counted. The goal is 20 targets and 4 weeks within 20 s and 500 MB. Each target serves its own model, which is the dearest case: a page
with twenty models.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from e2e.report.history import END, Scenario, simulate, write_openmetrics
from e2e.report.server import PROMETHEUS, PROMTOOL, create_blocks, prometheus

CASES = ((5, 1), (5, 4), (20, 1), (20, 4))
PER_SERVICE = int(os.environ.get("REPLICAS", "1"))


def scenarios(targets: int) -> tuple[Scenario, ...]:
    """Services with PER_SERVICE replicas each."""
    names = [f"t{index:02d}" for index in range(targets)]
    groups = [tuple(names[at : at + PER_SERVICE]) for at in range(0, targets, PER_SERVICE)]
    return tuple(Scenario(f"model-{at}", group, base=0.5 * len(group), knee=0.75, seed=at) for at, group in enumerate(groups))


def measure(targets: int, weeks: int) -> None:
    """One case."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        written = simulate(scenarios(targets), END, weeks)
        write_openmetrics(written, base / "history.om")
        create_blocks(base / "history.om", base / "data")
        with (base / "history.om").open() as file:
            points = sum(1 for _ in file)
        (base / "history.om").unlink()
        with prometheus(base / "data") as url:
            end = datetime.fromtimestamp(END, UTC).isoformat()
            history = f"{7 * weeks}d"
            arguments = ["report", "--prometheus.url", url, "--history", history, "--end", end, "--out", str(base / "out"), "--quiet"]
            begin = time.monotonic()
            process = subprocess.Popen([sys.executable, "-m", "llm_exporter", *arguments], stdout=subprocess.DEVNULL)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            wall = time.monotonic() - begin
            assert process.returncode == 0
            cpu = used.ru_utime + used.ru_stime
            page = (base / "out" / "report.html").stat().st_size / 1e6
            memory = used.ru_maxrss / 1024
            print(
                f"| {targets} | {weeks} | {points / 1e6:.1f} M | {wall:.1f} s | {cpu:.1f} s | {memory:.0f} MB | {page:.1f} MB |", flush=True
            )


def main() -> None:
    """Measure the cases of the command line, or all."""
    if PROMETHEUS is None or PROMTOOL is None:
        print(f"skipped: needs {'prometheus' if shutil.which('promtool') else 'prometheus and promtool'} on the path")
        return
    print("| targets | weeks | points | wall | CPU | memory | page |\n|---|---|---|---|---|---|---|")
    chosen = [tuple(int(part) for part in case.split("x")) for case in sys.argv[1:]] or CASES
    for targets, weeks in chosen:
        measure(targets, weeks)


if __name__ == "__main__":
    main()
