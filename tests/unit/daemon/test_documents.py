"""Rows about targets: what each is made of, and that hundreds of targets cost a page view once."""

from __future__ import annotations

from collections.abc import Iterator

from llm_exporter.daemon.documents import published
from llm_exporter.expose.page import Page
from llm_exporter.metrics import Family, Metric, Sample
from llm_exporter.readings import Kind, Unit

UP = Metric("llm_up", Kind.GAUGE, Unit.FLAG, "Up.", ("target",))
BY_GPU = Metric("llm_gpu_thing", Kind.GAUGE, Unit.COUNT, "Things.", ("gpu", "target"))
OF_NOBODY = Metric("llm_other", Kind.GAUGE, Unit.COUNT, "Others.", ("gpu",))


class CountingPage(Page):
    reads = 0

    def families(self) -> Iterator[Family]:
        self.reads += 1
        return super().families()


def test_each_target_has_its_own_samples_and_the_page_is_read_once() -> None:
    page = CountingPage((UP, BY_GPU, OF_NOBODY), lambda: 0.0)
    page.put("a", [Family(UP, [Sample(("a",), 1.0)])])
    page.put("b", [Family(UP, [Sample(("b",), 0.0)])])
    page.put("gpu", [Family(BY_GPU, [Sample(("0", "b"), 5.0), Sample(("1", "a"), 6.0)]), Family(OF_NOBODY, [Sample(("0",), 1.0)])])
    assert published(page) == {
        "a": [Family(UP, [Sample(("a",), 1.0)]), Family(BY_GPU, [Sample(("1", "a"), 6.0)])],
        "b": [Family(UP, [Sample(("b",), 0.0)]), Family(BY_GPU, [Sample(("0", "b"), 5.0)])],
    }
    assert page.reads == 1
