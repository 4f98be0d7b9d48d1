"""The review of a history whose truth is known, and of histories that lack something."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from e2e.report.history import (
    BERLIN,
    END,
    FIVE_WEEKS,
    LOST,
    PER_GENERATED,
    PER_PROMPT,
    REGRESSION_AT,
    START_OF_WEEK,
    STARVED,
    WEEK,
    Scenario,
    Written,
    simulate,
    to_history,
    true_capacity,
)
from llm_exporter.report.document import document
from llm_exporter.report.finding import Span, plain
from llm_exporter.report.fleet import TargetFacts
from llm_exporter.report.html import render_html
from llm_exporter.report.markdown import render_markdown, summary
from llm_exporter.report.review import ModelReview, Review, review
from llm_exporter.report.write import write_review

SPAN = Span(START_OF_WEEK, END)
PRICES = {name: TargetFacts(gpu_cost_per_hour=2.5) for name in ("chat-0", "chat-1", "chat-2")}
SMALL = Scenario("org/small", ("a",), base=0.4, knee=0.66, seed=11)


def judge(written: Written, span: Span = SPAN, **options: Any) -> Review:
    return review(to_history(written), span, BERLIN, "Europe/Berlin", **options)


def made(*scenarios: Scenario, weeks: float = 3, drop: tuple[str, ...] = ()) -> Written:
    written = simulate(scenarios, END, weeks)
    written.series = [one for one in written.series if one[0] not in drop]
    return written


@pytest.fixture(scope="module")
def five_weeks() -> Review:
    return judge(simulate(FIVE_WEEKS, END), facts=PRICES, currency="EUR")


def model(found: Review, name: str) -> ModelReview:
    return next(one for one in found.models if name in one.service.model)


def test_the_review_names_what_happened_and_nothing_else(five_weeks: Review) -> None:
    kinds = {one.service.model: sorted(headline.kind for headline in one.headlines) for one in five_weeks.models}
    assert kinds == {
        "acme/chat-70b": ["down", "growth", "weekend"],
        "acme/code-8b": ["regression", "weekend"],
        "acme/mini-3b": ["starved", "weekend"],
    }


def test_growth_and_weekend_are_those_of_the_history(five_weeks: Review) -> None:
    chat = model(five_weeks, "chat")
    truth = 0.04 / (1 + 0.04 * 5)
    growth = chat.growth.finding
    assert growth["lower"] <= truth <= growth["upper"]
    assert growth["days_of_history"] in {34, 35}
    assert chat.load.weekend_ratio == pytest.approx(0.5, abs=0.05)


def test_capacity_and_the_cost_of_a_token_are_those_of_the_history(five_weeks: Review) -> None:
    for scenario in FIVE_WEEKS:
        one = model(five_weeks, scenario.model)
        assert one.load.cost is not None
        assert one.load.cost.per_prompt == pytest.approx(PER_PROMPT, rel=0.05)
        assert one.load.cost.per_generated == pytest.approx(PER_GENERATED, rel=0.05)
        truth = true_capacity(scenario) * len(scenario.targets)
        assert one.sustainable.finding["value"] == pytest.approx(truth, rel=0.02)
        assert not one.sustainable.finding["censored"]


def test_the_regression_has_its_date_and_size(five_weeks: Review) -> None:
    (change,) = model(five_weeks, "code").regressions.found
    assert change.metric == "time_to_first_token_p95_seconds"
    assert change.shift_ratio == pytest.approx(0.3, abs=0.08)
    assert abs(change.since - REGRESSION_AT) <= 8 * 3600


def test_events_have_their_hours(five_weeks: Review) -> None:
    (down,) = model(five_weeks, "chat").events
    assert (down.target, down.start, down.end) == LOST
    (starved,) = model(five_weeks, "mini").events
    assert (starved.target, starved.start, starved.end) == STARVED
    assert model(five_weeks, "mini").ledger.finding["starved"] == pytest.approx(6 * 0.75, abs=1.5)


def test_the_ledger_adds_up_and_money_follows_it(five_weeks: Review) -> None:
    for one in five_weeks.models:
        hours = one.ledger.finding
        assert hours["total"] == pytest.approx(sum(hours[kind] for kind in ("useful", "idle", "starved", "throttled")))
        assert hours["total"] == pytest.approx(168 * sum(one.service.gpus_of(name) or 0 for name in one.service.targets))
    chat = model(five_weeks, "chat")
    assert chat.cost["idle"] == pytest.approx(2.5 * chat.ledger.finding["idle"])
    where = chat.service.grid.within(SPAN.start, SPAN.end)
    prompt, generated = chat.service.total("computed_tokens", where), chat.service.total("generation_tokens", where)
    assert prompt is not None
    assert generated is not None
    spent = chat.cost["per_million_prompt_tokens"] * prompt / 1e6 + chat.cost["per_million_generated_tokens"] * generated / 1e6
    assert spent + chat.cost["idle"] == pytest.approx(2.5 * chat.ledger.finding["total"])
    assert model(five_weeks, "code").cost["idle"] is None


def shape_of(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict):
        return [entry for key, item in value.items() if key != "why" for entry in shape_of(item, f"{path}.{key}")]
    if isinstance(value, list):
        return [entry for item in value[:1] for entry in shape_of(item, f"{path}[]")]
    return [path]


CONTRACT = json.loads((Path(__file__).parents[2] / "fixtures" / "report" / "contract.json").read_text())
OPEN = re.compile(r"models\[\]\.(bottleneck_share|regressions\[\]|recommendations\[\])\.|warnings\[\]")


def fixed_keys(body: Any) -> set[str]:
    return {path.lstrip(".") for path in shape_of(body) if not OPEN.match(path.lstrip("."))}


def nulls_without_a_reason(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict):
        own = [f"{path}.{key}" for key, item in value.items() if item is None and key not in value.get("why", {})]
        return own + [entry for key, item in value.items() for entry in nulls_without_a_reason(item, f"{path}.{key}")]
    return [entry for item in value for entry in nulls_without_a_reason(item, path)] if isinstance(value, list) else []


def test_the_document_has_the_shape_of_the_contract(five_weeks: Review) -> None:
    body = document(five_weeks)
    text = json.dumps(body, allow_nan=False)
    assert json.loads(text) == body
    assert fixed_keys(body) == fixed_keys(CONTRACT)
    assert nulls_without_a_reason(body) == []
    assert body["window"]["start"] == "2026-10-26T07:00:00Z"
    regression = next(one for one in body["models"] if one["regressions"])["regressions"][0]
    assert regression.keys() == CONTRACT["models"][0]["regressions"][0].keys()
    advice = next(one for one in body["models"] if one["recommendations"])["recommendations"][0]
    assert advice.keys() == CONTRACT["models"][0]["recommendations"][0].keys()
    assert sum(body["models"][0]["bottleneck_share"].values()) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    "drop",
    [
        ("busy", "gpus"),
        ("slo_requests", "slo_good"),
        ("received", "waiting"),
        ("queried_tokens", "hit_tokens"),
        ("ttft_bucket", "itl_bucket", "e2e_sum"),
        ("verdict",),
        ("generation_tokens",),
        ("info", "slo_threshold", "slo_objective"),
        ("kv_usage", "preemptions", "finished"),
    ],
    ids=lambda keys: keys[0],
)
def test_what_is_missing_is_null_with_a_reason(drop: tuple[str, ...]) -> None:
    found = judge(made(SMALL, drop=drop))
    body = document(found)
    assert nulls_without_a_reason(body) == []
    assert render_markdown(found)
    if drop[0] == "busy":
        assert body["models"][0]["load"]["unit"] == "tokens_per_second"
        assert body["models"][0]["gpu_hours"]["total"] is None
    if drop[0] == "slo_requests":
        assert body["models"][0]["sustainable"]["value"] is None


def test_without_gpu_readings_the_ledger_says_that_it_guesses() -> None:
    found = judge(made(SMALL, drop=("busy", "gpus")), facts={"a": TargetFacts(gpu_count=2)})
    assert found.models[0].ledger.approximate
    assert "Without GPU readings" in found.models[0].ledger.finding.basis
    assert document(found)["models"][0]["gpus"] == 2


def test_no_forecast_under_fourteen_days() -> None:
    found = judge(made(SMALL, weeks=1.5))
    growth = document(found)["models"][0]["growth"]
    assert growth["per_week_ratio"] is None
    assert "no forecast under 14 days" in growth["why"]["per_week_ratio"]
    assert found.models[0].load.cells == 48


def test_a_capacity_that_was_never_met_is_only_a_bound() -> None:
    found = judge(made(dataclasses.replace(SMALL, knee=3.0)))
    one = document(found)["models"][0]
    seen = np.nanmax(found.models[0].load.offered)
    assert one["sustainable"]["censored"]
    assert one["sustainable"]["value"] <= seen
    assert one["sustainable"]["upper"] is None
    assert one["headroom_ratio"] is None
    assert one["growth"]["weeks_to_exhaustion"] is None


def test_an_slo_that_load_does_not_break_gives_no_capacity() -> None:
    found = judge(made(dataclasses.replace(SMALL, objective=0.999)))
    assert found.models[0].sustainable.finding["value"] is None
    assert "load is not what breaks it" in found.models[0].sustainable.finding.why["value"]


def rename(written: Written, old: str, new: str, at: int) -> None:
    """The target is called `new` from `at` on."""
    position = (at - written.grid.start) // written.grid.step
    renamed = []
    for key, labels, values in written.series:
        if labels.get("target") != old:
            continue
        after = values.copy()
        after[: position + 1] = np.nan
        values[position + 1 :] = np.nan
        renamed.append((key, {**labels, "target": new}, after))
    written.series += renamed


def test_a_renamed_target_is_not_a_lost_replica() -> None:
    written = made(SMALL)
    rename(written, "a", "b", START_OF_WEEK + 2 * 86_400)
    found = judge(written)
    (one,) = found.models
    assert one.service.targets == ("a", "b")
    assert any("taken as renamed" in warning for warning in found.warnings)
    assert not [event for event in one.events if event.kind == "down"]
    assert one.ledger.finding["total"] == pytest.approx(168, rel=0.01)
    assert one.growth.finding["days_of_history"] >= 20


def test_two_exporters_on_one_target_are_told() -> None:
    written = made(SMALL)
    written.series += [(key, {**labels, "instance": "other"}, values) for key, labels, values in written.series]
    assert any("2 exporters at the same time" in warning for warning in judge(written).warnings)


def test_a_gap_is_not_a_quiet_hour() -> None:
    written = made(SMALL)
    whole = judge(written).models[0]
    first = (START_OF_WEEK + 86_400 - written.grid.start) // 300
    for _, _, values in written.series:
        values[first : first + 12 * 12] = np.nan
    found = judge(written)
    (one,) = found.models
    assert found.coverage == pytest.approx(1 - 12 / 168, abs=0.01)
    assert any("was observed" in warning for warning in found.warnings)
    assert [event.kind for event in one.events] == ["unobserved"]
    where = one.service.grid.within(SPAN.start, SPAN.end)
    assert one.service.total("generation_tokens", where) == pytest.approx(whole.service.total("generation_tokens", where))
    assert one.load.finding["p50"] == pytest.approx(whole.load.finding["p50"], rel=0.1)
    assert one.availability == 1.0


def test_quiet_targets_have_no_model_and_no_division_by_zero() -> None:
    written = made(SMALL)
    for key, _, values in written.series:
        if key in {
            "generation_tokens",
            "computed_tokens",
            "prompt_tokens",
            "slo_requests",
            "slo_good",
            "received",
            "first_tokens",
            "finished",
        }:
            values[np.isfinite(values)] = 0.0
    body = document(judge(written))
    assert nulls_without_a_reason(body) == []
    assert body["models"][0]["slo"][0]["good_ratio"] is None


def test_a_change_of_version_has_a_date_and_cuts_the_fit() -> None:
    written = made(SMALL)
    at = (START_OF_WEEK - written.grid.start) // 300
    for key, labels, values in list(written.series):
        if key == "info":
            after = values.copy()
            after[: at + 1] = np.nan
            values[at + 1 :] = np.nan
            written.series.append((key, {**labels, "engine_version": "2.0"}, after))
    (one,) = judge(written).models
    assert "version_changed" in {event.kind for event in one.events}
    assert one.sustainable.finding["n_windows"] <= 7 * 288
    assert "since the last change of version" in one.sustainable.finding.basis


HOSTILE = '<script>alert("x")</script>|`*_[a](b)'


def test_a_hostile_model_name_stays_text() -> None:
    found = judge(made(dataclasses.replace(SMALL, model=HOSTILE)))
    page = render_html(found, [{}], 0.0)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "<script" not in render_markdown(found).replace("\\<", "")
    assert HOSTILE in summary(found)


def test_the_page_needs_nothing_from_outside(five_weeks: Review, tmp_path: Path) -> None:
    written = write_review(five_weeks, tmp_path / "out", 1_700_000_000.0, png=True)
    names = {path.name for path in written}
    assert {"report.html", "report.md", "report.json", "1-acme-chat-70b-week.png"} <= names
    assert not list((tmp_path / "out").glob(".*"))
    page = (tmp_path / "out" / "report.html").read_text()
    assert not re.search(r"(src|href)=\"(?!data:image/png;base64,)", page)
    assert not re.search(r"https?://|url\(|@import", page)
    assert page.count("<img alt=") == 12
    assert "![" in (tmp_path / "out" / "report.md").read_text()
    json.loads((tmp_path / "out" / "report.json").read_text())


def test_json_numbers_are_plain() -> None:
    assert plain({"a": np.float64(1 / 3), "b": np.int64(2), "c": math.inf, "d": [np.bool_(True)]}) == {
        "a": 0.333333,
        "b": 2,
        "c": None,
        "d": [True],
    }


def test_a_window_longer_than_a_week_is_reviewed_whole() -> None:
    found = judge(made(SMALL), Span(END - 2 * WEEK, END))
    assert found.models[0].ledger.finding["total"] == pytest.approx(336, rel=0.01)
