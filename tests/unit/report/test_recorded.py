"""The recording rules that the review reads: names, matchers, and nothing windowed."""

from __future__ import annotations

import re

from llm_exporter.signals.review_records import FACTS, RECORDS


def test_names_follow_the_convention_and_are_unique() -> None:
    assert len({record.record for record in RECORDS}) == len(RECORDS)
    assert len({record.key for record in (*RECORDS, *FACTS)}) == len(RECORDS) + len(FACTS)
    for record in RECORDS:
        assert re.fullmatch(r"target:llm_[a-z0-9_]+:[a-z0-9_]+", record.record)
        assert record.meaning.endswith(".")


def test_no_expression_reads_a_windowed_metric() -> None:
    windowed = re.compile(r"llm_\w*(_quantile_|_mean_seconds|_in_window|_per_second|_hit_ratio|_saturated|starved_ratio|share_ratio)")
    for record in (*RECORDS, *FACTS):
        assert not windowed.search(record.expression()), record.key
        assert "window" not in record.expression()


def test_matchers_reach_every_selector() -> None:
    for record in (*RECORDS, *FACTS):
        text = record.expression("4m", 'cluster="a"')
        assert "$" not in text
        assert text.count('cluster="a"') == len(re.findall(r"\bllm_\w+", text)), text
        assert "5m" not in text or "1h" in text
    assert RECORDS[0].selector('cluster="a"') == 'target:llm_target_up:avg5m{cluster="a"}'
