"""The exporter beside a real GPU load: plays each mode of gpu_engine.py and prints what the exporter says.

    python bench/verify_gpu.py [--seconds 45]

Needs PyTorch with CUDA and the exporter on the path. Everything stays on loopback.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

MODES = ("decode", "starved", "prefill", "idle")
SHOWN = (
    "llm_bottleneck_verdict", "llm_bottleneck_confidence_ratio", "llm_bottleneck_score_ratio", "llm_gpu_starved", "llm_engine_stalled",
    "llm_gpu_utilization_ratio", "llm_gpu_graphics_active_ratio", "llm_gpu_sm_active_ratio", "llm_gpu_tensor_active_ratio",
    "llm_gpu_dram_active_ratio", "llm_gpu_power_watts", "llm_gpu_clock_hertz", "llm_gpu_throttle_active", "llm_gpu_target",
    "llm_gpu_process_memory_bytes",
    "llm_host_", "llm_exporter_source", "llm_generation_tokens_per_second", "llm_prefill_tokens_per_second",
)  # fmt: skip


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return answer.read().decode()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=45.0)
    args = parser.parse_args()
    engine_script = Path(__file__).with_name("gpu_engine.py")
    for number, mode in enumerate(MODES):
        engine_port, port = 8100 + number, 9900 + number
        engine = subprocess.Popen([sys.executable, str(engine_script), "--port", str(engine_port), "--mode", mode])
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "c.yml"
            config.write_text(f"global: {{scrape_interval: 2s}}\ntargets:\n  - {{name: toy, url: 'http://127.0.0.1:{engine_port}'}}\n")
            exporter = subprocess.Popen(
                [sys.executable, "-m", "llm_exporter", "serve", "--config.file", str(config), "--web.listen-address", f"127.0.0.1:{port}"]
            )
            time.sleep(args.seconds)
            print(f"\n===== {mode}: after {args.seconds:.0f} s; exporter's CPU {cpu_seconds(exporter.pid) / args.seconds:.4f} cores")
            for line in page(port).splitlines():
                if line.startswith(SHOWN) and not line.startswith("#") and not line.endswith((" 0.0", " 0")):
                    print(line)
            for process in (exporter, engine):
                process.terminate()
                process.wait(10)


if __name__ == "__main__":
    main()
