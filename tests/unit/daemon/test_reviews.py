"""The review in the daemon: made once when it is due, whichever job comes first, and again after a failure."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from llm_exporter.config.model import Report, ReportPrometheus
from llm_exporter.daemon.reviews import Reviews
from llm_exporter.daemon.schedule import At
from llm_exporter.errors import LlmExporterError
from llm_exporter.expose.page import Page
from llm_exporter.report import directory


def reviews(tmp_path: Path, run_child: object) -> Reviews:
    made = Reviews(Page((directory.LAST_SUCCESS,), lambda: 0.0), tmp_path / "c.yml", run_child)  # type: ignore[arg-type]
    # every minute: within five minutes of its first moment a review is due
    prometheus = ReportPrometheus(url="http://127.0.0.1:9")
    made.apply(Report(schedule="* * * * *", timezone="UTC", directory=tmp_path / "reports", prometheus=prometheus))
    return made


def test_two_jobs_at_once_make_one_review(tmp_path: Path) -> None:
    runs: list[Sequence[str]] = []
    inside, release = threading.Event(), threading.Event()

    def child(arguments: Sequence[str]) -> None:
        runs.append(arguments)
        inside.set()
        assert release.wait(10)

    made = reviews(tmp_path, child)
    first = threading.Thread(target=made.catch_up)
    first.start()
    assert inside.wait(10)
    made.catch_up()
    assert len(runs) == 1
    release.set()
    first.join(10)


def test_a_review_that_failed_is_tried_again(tmp_path: Path) -> None:
    runs: list[Sequence[str]] = []

    def child(arguments: Sequence[str]) -> None:
        runs.append(arguments)
        raise LlmExporterError("Prometheus refuses connections")

    made = reviews(tmp_path, child)
    for _ in range(2):
        with pytest.raises(LlmExporterError):
            made.catch_up()
    assert len(runs) == 2


def test_its_jobs_share_no_lane_with_probes(tmp_path: Path) -> None:
    made = reviews(tmp_path, lambda _: None)
    assert made.config is not None
    jobs = made.apply(made.config)
    assert {job.lane for job in jobs.values()} == {"default"}
    assert isinstance(jobs["review"].when, At)
