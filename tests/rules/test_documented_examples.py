"""The rules that docs/probing.md offers do what it says of them."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from rules.running import needs_promtool, promtool
from rules.series import TARGET, counter, gauge, t

PAGE = Path(__file__).parents[2] / "docs" / "probing.md"
TTFT = "llm_probe_time_to_first_token_distribution_seconds"
DAY = 24 * 60


def examples() -> dict[str, object]:
    (block,) = re.findall(r"```yaml\n(groups:.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found = yaml.safe_load(block)
    for group in found["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
    return found  # type: ignore[no-any-return]


def probes(module: str, *, slow_per_minute: float, fast_per_minute: float) -> dict[str, str]:
    """Half an hour of probes; fast ones take at most 0.75 s, slow ones between 1 and 1.5 s."""
    labels = {"module": module, "prompt_tokens": "64", "cache": "cold"}
    every = slow_per_minute + fast_per_minute
    by_edge = {"0.75": fast_per_minute, "1.0": fast_per_minute, "1.5": every, "+Inf": every}
    buckets = {t(f"{TTFT}_bucket", **labels, le=edge): counter((30, rate)) for edge, rate in by_edge.items()}
    return {**buckets, t(f"{TTFT}_count", **labels): counter((30, every))}


def asked(name: str, seen: dict[str, str], minutes: int, *, fires: str = "", step: str = "15s") -> dict[str, object]:
    expected = [{"exp_labels": {**TARGET, "module": fires, "severity": "ticket"}}] if fires else []
    return {
        "interval": step,
        "input_series": [{"series": series, "values": values} for series, values in seen.items()],
        "alert_rule_test": [{"eval_time": f"{minutes}m", "alertname": name, "exp_alerts": expected}],
    }


@needs_promtool
def test_the_examples_fire_when_they_should_and_not_otherwise(tmp_path: Path) -> None:
    ran = t("llm_probe_last_run_timestamp_seconds", module="ladder")
    late = {ran: gauge((3 * DAY, 0), step=300)}
    told = promtool(
        tmp_path,
        examples(),
        [
            asked("ProbeTTFTHigh", probes("heartbeat", slow_per_minute=1, fast_per_minute=1), 25, fires="heartbeat"),
            asked("ProbeTTFTHigh", probes("heartbeat", slow_per_minute=0.04, fast_per_minute=1.96), 25),
            asked("ProbeTTFTHigh", probes("heartbeat", slow_per_minute=0.4, fast_per_minute=0), 25),
            asked("ProbeTTFTHigh", probes("ladder", slow_per_minute=2, fast_per_minute=0), 25),
            asked("ProbeTTFTHigh", probes("heartbeat", slow_per_minute=0, fast_per_minute=0), 25),
            asked("ProbeLadderOverdue", late, 2 * DAY + 10, fires="ladder", step="300s"),
            asked("ProbeLadderOverdue", late, 2 * DAY - 10, step="300s"),
        ],
    )
    assert told.returncode == 0, told.stdout + told.stderr
