"""`explain`: from a name to its path, with what stands there now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fakes.servers import FakeServer, page, then
from llm_exporter.cli.explain import command
from llm_exporter.config.model import Config, Target
from llm_exporter.daemon import explaining
from llm_exporter.daemon.explaining import alerts_of, metric_named, panels_of
from llm_exporter.daemon.pipeline import Pipeline, Timing
from llm_exporter.daemon.published import declared
from llm_exporter.daemon.trace import trace
from llm_exporter.errors import LlmExporterError, UsageError
from llm_exporter.expose.page import Page
from llm_exporter.sources.engine import Fetched

BUSY = Path(__file__).parents[2] / "fixtures" / "recordings" / "h200" / "mid-decode_heavy"


def explained(tmp_path: Path, signal: str, *further: str) -> Result:
    first, later = (BUSY / "t000.prom").read_bytes(), (BUSY / "t006.prom").read_bytes()
    with FakeServer(then(page(first), page(later))) as server:
        config = tmp_path / "c.yml"
        config.write_text(
            f"gpu: {{enabled: false}}\nhost: {{enabled: false}}\ntargets: [{{name: chat, url: '{server.url}'}}, {{name: gone, url: 'http://127.0.0.1:9'}}]\n"
        )
        return CliRunner().invoke(command, ["--config.file", str(config), "--apart", "0.1", signal, *further], standalone_mode=False)


@pytest.mark.parametrize(
    "name", ["llm_kv_cache_usage_ratio", "kv_cache_usage_ratio", "kv_cache_usage", 'llm_kv_cache_usage_ratio{target="a"}']
)
def test_a_name_is_found_with_and_without_prefix(name: str) -> None:
    assert metric_named(name).name == "llm_kv_cache_usage_ratio"


def test_a_histograms_series_lead_to_the_histogram() -> None:
    assert metric_named("llm_time_to_first_token_seconds_bucket").name == "llm_time_to_first_token_seconds"


def test_every_published_metric_can_be_named() -> None:
    for metric in declared():
        assert metric_named(metric.name.removeprefix("llm_")) == metric


@pytest.mark.parametrize(
    ("typed", "meant"), [("kv_cach_usage_ratio", "kv_cache_usage_ratio"), ("ttft_quantile", ""), ("hit_ratio", "prefix_cache_hit_ratio")]
)
def test_a_wrong_name_gets_suggestions(typed: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"no signal '{typed}'.*{meant}"):
        metric_named(typed)


def test_evidence_that_is_not_published_says_who_reads_it() -> None:
    with pytest.raises(UsageError, match=r"steps is not published; it is evidence for .*llm_bottleneck_verdict"):
        metric_named("steps")


def test_the_whole_path_of_a_gauge(tmp_path: Path) -> None:
    result = explained(tmp_path, "kv_cache_usage_ratio", "--target", "chat")
    assert result.return_value == 0, result.output
    lines = result.output.splitlines()
    wanted = [
        r"  raw line  vllm:kv_cache_usage_perc\{.*\} 0\.0\d+",
        r"  field     kv_cache_usage",
        r"  metric    llm_kv_cache_usage_ratio\{engine=\"vllm\",model=\"m\"\} 0\.0\d+",
        r"panel: LLM target / KV cache",
        r"alert: LLMKVCacheNearlyFull \(ticket\), decides",
    ]
    found = [next(i for i, line in enumerate(lines) if re.fullmatch(pattern, line)) for pattern in wanted]
    assert found == sorted(found), "raw line, field, metric, panel, alert: in this order"
    raw, published = (float(lines[found[i]].rsplit(" ", 1)[1]) for i in (0, 2))
    assert raw == published


SPLIT = """# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_bucket{{is_streaming="false",le="1.0",model_name="m"}} 7
sglang:time_to_first_token_seconds_bucket{{is_streaming="false",le="+Inf",model_name="m"}} 7
sglang:time_to_first_token_seconds_sum{{is_streaming="false",model_name="m"}} 3
sglang:time_to_first_token_seconds_bucket{{is_streaming="true",le="1.0",model_name="m"}} {0}
sglang:time_to_first_token_seconds_bucket{{is_streaming="true",le="+Inf",model_name="m"}} {0}
sglang:time_to_first_token_seconds_sum{{is_streaming="true",model_name="m"}} {0}
sglang:num_running_reqs{{model_name="m"}} 1
"""


def test_the_trace_shows_the_lines_that_the_value_is_made_of() -> None:
    pipeline = Pipeline(Target(name="chat", url="http://x"), Page(declared(), lambda: 15.0), Timing(15.0, 5.0, 60.0), lambda: 0.0)
    for now, count in ((0.0, 1000), (15.0, 2000000)):
        pipeline.take(Fetched(SPLIT.format(count).encode(), "text/plain; version=0.0.4", 0.0), now)
    rows = trace(pipeline, pipeline.page, "llm_time_to_first_token_seconds")
    assert rows
    for row in rows:
        assert len(row["lines"]) == 3, "two buckets and the sum"
        assert all('is_streaming="true"' in line and line.endswith(" 2000000") for line in row["lines"])


def test_an_information_line_is_shown_for_what_its_labels_say() -> None:
    pipeline = Pipeline(Target(name="chat", url="http://x"), Page(declared(), lambda: 0.0), Timing(15.0, 5.0, 60.0), lambda: 0.0)
    body = b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1\nvllm:num_requests_running{engine="0",model_name="m"} 1\n'
    pipeline.take(Fetched(body, "text/plain; version=0.0.4", 0.0), 0.0)
    (row,) = trace(pipeline, pipeline.page, "llm_kv_cache_capacity_tokens")
    assert row["value"] == 1600
    assert any(line.startswith("vllm:cache_config_info{") for line in row["lines"])


def test_two_scrapes_make_a_window(tmp_path: Path) -> None:
    result = explained(tmp_path, "llm_prefix_cache_hit_ratio", "--target", "chat")
    assert re.search(r'metric    llm_prefix_cache_hit_ratio\{engine="vllm",model="m",window="1m"\} 0\.\d+', result.output)
    assert "the counters that it is made of are read by" in result.output
    assert "LLMPrefixCacheHitRatioLow" in result.output


def test_a_target_that_is_down_says_why_and_the_rest_goes_on(tmp_path: Path) -> None:
    result = explained(tmp_path, "kv_cache_usage_ratio")
    assert result.return_value == 0
    assert "target gone: unknown engine, down: refused" in result.output
    alone = explained(tmp_path, "kv_cache_usage_ratio", "--target", "gone")
    assert alone.return_value == 1


def test_a_target_that_is_not_configured(tmp_path: Path) -> None:
    result = explained(tmp_path, "kv_cache_usage_ratio", "--target", "other")
    assert isinstance(result.exception, UsageError)
    assert "there are chat, gone" in str(result.exception)


def test_what_is_read_through_a_recording_rule_is_found() -> None:
    ttft = metric_named("llm_time_to_first_token_seconds")
    assert any(use.through.startswith("target_model:") for use in panels_of(ttft))
    assert any(use.where.startswith("LLMTTFTP99High") and use.role == "decides" for use in alerts_of(ttft, Config()))


def test_without_the_generators_the_rest_is_still_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise LlmExporterError("not available in this installation (x)")

    monkeypatch.setattr(explaining, "_part", missing)
    result = explained(tmp_path, "kv_cache_usage_ratio", "--target", "chat")
    assert "panel: not available in this installation" in result.output
    assert "raw line" in result.output
