"""Histories with holes, stuck and missing series: the review never breaks, never divides by zero, never leaves a null without a reason."""

from __future__ import annotations

import json

import numpy as np
import pytest

from e2e.report.history import BERLIN, END, Scenario, Written, simulate, to_history
from llm_exporter.report.document import document
from llm_exporter.report.finding import Span
from llm_exporter.report.markdown import render_markdown
from llm_exporter.report.review import review
from llm_exporter.signals.review_records import FACTS, RECORD, RECORDS

KEYS = [record.key for record in (*RECORDS, *FACTS)]


def spoil(written: Written, random: np.random.Generator) -> None:
    """Drop some records; blank, zero, reset or freeze parts of the others."""
    dropped = set(random.choice(KEYS, size=random.integers(0, 12), replace=False))
    written.series = [one for one in written.series if one[0] not in dropped]
    for key, _, values in written.series:
        for _ in range(random.integers(0, 3)):
            first = int(random.integers(0, values.size))
            part = slice(first, first + int(random.integers(1, max(2, values.size // 2))))
            kind = random.integers(0, 4)
            if kind == 0:
                values[part] = np.nan
            elif kind == 1:
                values[part] = 0.0
            elif kind == 2 and RECORD[key].level and np.isfinite(values[first]):
                values[first:] -= values[first]
            else:
                values[part] = values[first]


@pytest.mark.parametrize("seed", range(8))
def test_a_spoiled_history_still_gives_a_review(seed: int) -> None:
    random = np.random.default_rng(seed)
    scenarios = (
        Scenario("m", ("a", "b"), base=1.0, knee=float(random.choice([0.3, 0.7, 5.0])), seed=seed),
        Scenario("n", ("c",), seed=seed + 50),
    )
    written = simulate(scenarios, END, float(random.choice([0.01, 0.3, 1, 2])))
    spoil(written, random)
    found = review(to_history(written), Span(END - int(random.choice([3600, 86_400, 7 * 86_400])), END), BERLIN, "Europe/Berlin")
    assert not [warning for warning in found.warnings if "cannot be judged" in warning]
    body = json.loads(json.dumps(document(found), allow_nan=False))
    for one in body["models"]:
        for section in (one, *(value for value in one.values() if isinstance(value, dict))):
            assert {key for key, value in section.items() if value is None} == set(section.get("why", {}))
    assert render_markdown(found)
