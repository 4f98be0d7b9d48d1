"""The probe metrics of CONTRACT 6.3, declared once, and the families made of what the probes have seen.

In: `ProbeRecord`s, all of them for `/metrics`, one for `/probe`. Out: `Family` objects for the page.
"""

# ruff: noqa: E501  # tables: one row on one line
from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from llm_exporter.metrics import Family, HistogramSample, Metric, Sample
from llm_exporter.readings import Kind, Unit
from llm_exporter.sources.probe import SENT_RESULTS, SKIPS, ProbeReading
from llm_exporter.sources.probe_record import TTFT_BOUNDS, ProbeCell, ProbeRecord

_RUN = ("target", "module")
_CELL = (*_RUN, "prompt_tokens", "cache")
_CELLS = "modules × configured lengths × cache states"
_MOST_CODES = 16
_HTTP_CODE = re.compile("http_[1-5][0-9][0-9]")
OTHER_CODES = "http_other"
_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

# fmt: off
SUCCESS = Metric("llm_probe_success", _G, Unit.FLAG, "1 when every request of the last run that was sent brought a whole stream with output, else 0.", _RUN, "modules")
LAST_RESULT = Metric("llm_probe_last_result", _G, Unit.FLAG, "1 for the result of the last run or skip, 0 for the others.", (*_RUN, "result"), "modules × 17 results and at most 16 HTTP codes")
LAST_RUN = Metric("llm_probe_last_run_timestamp_seconds", _G, Unit.TIMESTAMP, "When the last run that was sent ended.", _RUN, "modules")
REQUESTS = Metric("llm_probe_requests_total", _C, Unit.REQUESTS, "Probe requests, by result, those that prime the cache or teach the length of a token included; a skip is not one. The engine's own counters include those that reached it: not connect, dns, tls, tls_verify.", (*_RUN, "result"), "modules × 11 results and at most 16 HTTP codes")
SENT_TOKENS = Metric("llm_probe_sent_prompt_tokens_total", _C, Unit.TOKENS, "Prompt tokens of the probe requests sent, by the server's count where it gave one, else estimated.", _RUN, "modules")
COMPLETION_TOKENS = Metric("llm_probe_received_completion_tokens_total", _C, Unit.TOKENS, "Output tokens of the probe requests sent, the server's count; of a request that failed none are known.", _RUN, "modules")
BUFFERED = Metric("llm_probe_stream_buffered", _G, Unit.FLAG, "1 when the output of the last run came in one burst: something between engine and probe holds the stream back. Absent where there were too few pieces to say.", _RUN, "modules")
DISTRIBUTION = Metric("llm_probe_time_to_first_token_distribution_seconds", _H, Unit.SECONDS, "Time to first token of all successful probe requests since start, primings excluded.", _CELL, _CELLS)

_FROM_SENT = "from the request's last byte sent on an open connection to the read that completes"
CELL_GAUGES: tuple[tuple[Metric, Callable[[ProbeReading], float | int | None]], ...] = (
    (Metric("llm_probe_connect_seconds", _G, Unit.SECONDS, "TCP and TLS handshakes of the last probe, name resolution excluded; not part of the time to first token.", _CELL, _CELLS), lambda r: r.connect_seconds),
    (Metric("llm_probe_first_chunk_seconds", _G, Unit.SECONDS, f"Last probe: {_FROM_SENT} the first event, a role-only chunk included (the TTFT of `vllm bench serve`).", _CELL, _CELLS), lambda r: r.first_chunk_seconds),
    (Metric("llm_probe_time_to_first_token_seconds", _G, Unit.SECONDS, f"Last probe: {_FROM_SENT} the first event with output: content, reasoning, tool call or text.", _CELL, _CELLS), lambda r: r.time_to_first_token_seconds),
    (Metric("llm_probe_time_to_first_content_seconds", _G, Unit.SECONDS, f"Last probe: {_FROM_SENT} the first event with visible output; later than the first token where a model thinks first.", _CELL, _CELLS), lambda r: r.time_to_first_content_seconds),
    (Metric("llm_probe_inter_token_latency_seconds", _G, Unit.SECONDS, "Last probe: time from first to last output ÷ (tokens − 1).", _CELL, _CELLS), lambda r: r.inter_token_seconds),
    (Metric("llm_probe_completion_tokens", _G, Unit.TOKENS, "Output tokens of the last probe, the server's count.", _CELL, _CELLS), lambda r: r.completion_tokens),
    (Metric("llm_probe_prompt_tokens", _G, Unit.TOKENS, "Prompt tokens of the last probe, the server's count; label prompt_tokens is the length asked for.", _CELL, _CELLS), lambda r: r.prompt_tokens),
    (Metric("llm_probe_network_overhead_seconds", _G, Unit.SECONDS, "Last probe: time to first token less queue and prefill by the engine's clock, so network, proxies and the server's frontend; needs vLLM with --enable-per-request-metrics or SGLang's /generate.", _CELL, _CELLS), lambda r: r.network_overhead_seconds),
    (Metric("llm_probe_time_to_first_token_error_seconds", _G, Unit.SECONDS, "Last probe: how far the time to first token may be off because this machine read it late. Where that is too much, the times are left out and this says why.", _CELL, _CELLS), lambda r: r.ttft_error_seconds),
)
DURATION = Metric("llm_probe_duration_seconds", _G, Unit.SECONDS, "Whole duration of the last probe, connection included; there after a failed request too, absent where no request was begun.", _CELL, _CELLS)
# fmt: on

METRICS: tuple[Metric, ...] = (
    SUCCESS,
    LAST_RESULT,
    LAST_RUN,
    REQUESTS,
    SENT_TOKENS,
    COMPLETION_TOKENS,
    BUFFERED,
    DISTRIBUTION,
    DURATION,
    *(metric for metric, _ in CELL_GAUGES),
)


def families(records: Iterable[ProbeRecord]) -> list[Family]:
    """All probe metrics of these records; a metric without samples is left out."""
    rows = list(records)
    found = [
        Family(SUCCESS, [_run_sample(row, float(row.success)) for row in rows if row.success is not None]),
        Family(LAST_RESULT, [sample for row in rows for sample in _last_result(row)]),
        Family(LAST_RUN, [_run_sample(row, row.last_run_at) for row in rows if row.last_run_at is not None]),
        Family(REQUESTS, [sample for row in rows for sample in _requests(row)]),
        Family(SENT_TOKENS, [_run_sample(row, float(row.sent_prompt_tokens)) for row in rows]),
        Family(COMPLETION_TOKENS, [_run_sample(row, float(row.completion_tokens)) for row in rows]),
        Family(BUFFERED, [sample for row in rows for sample in _buffered(row)]),
        Family(DISTRIBUTION, [_histogram(row, cell) for row in rows for cell in row.cells]),
        Family(DURATION, [sample for row in rows for sample in _durations(row)]),
    ]
    for metric, value_of in CELL_GAUGES:
        values = [(row, cell, value_of(cell.last)) for row in rows for cell in row.cells if cell.last is not None and cell.last.success]
        found.append(Family(metric, [_cell_sample(row, cell, float(value)) for row, cell, value in values if value is not None]))
    return [family for family in found if family.samples]


def _run_sample(row: ProbeRecord, value: float) -> Sample:
    return Sample((row.target, row.module), value)


def _cell_labels(row: ProbeRecord, cell: ProbeCell) -> tuple[str, ...]:
    return (row.target, row.module, str(cell.prompt_tokens), cell.cache)


def _cell_sample(row: ProbeRecord, cell: ProbeCell, value: float) -> Sample:
    return Sample(_cell_labels(row, cell), value)


def _durations(row: ProbeRecord) -> list[Sample]:
    """Nothing takes no time: 0 means that nobody measured."""
    measured = [(cell, cell.last.duration_seconds) for cell in row.cells if cell.last is not None]
    return [_cell_sample(row, cell, seconds) for cell, seconds in measured if seconds > 0]


def _labels_of(results: Iterable[str]) -> dict[str, str]:
    """The value of label `result` for each result, so that no server can make more series than a few.

    A code outside of HTTP's own range, and every code after the first sixteen, is http_other. `results` is in the order in which they
    were first seen, so that a result keeps its label.
    """
    found: dict[str, str] = {}
    codes = 0
    for name in dict.fromkeys(results):
        found[name] = name
        if name.startswith("http_"):
            if codes < _MOST_CODES and _HTTP_CODE.fullmatch(name):
                codes += 1
            else:
                found[name] = OTHER_CODES
    return found


def _last_result(row: ProbeRecord) -> list[Sample]:
    if not row.last_result:
        return []
    labels = _labels_of((*row.results, row.last_result))
    last = labels[row.last_result]
    codes = [label for label in labels.values() if label.startswith("http_")]
    names = dict.fromkeys([*SENT_RESULTS, *codes, *SKIPS])
    return [Sample((row.target, row.module, name), float(name == last)) for name in names]


def _requests(row: ProbeRecord) -> list[Sample]:
    labels = _labels_of(row.results)
    counts = dict.fromkeys(SENT_RESULTS, 0)
    for name, count in row.results.items():
        counts[labels[name]] = counts.get(labels[name], 0) + count
    return [Sample((row.target, row.module, name), float(count)) for name, count in counts.items()]


def _buffered(row: ProbeRecord) -> list[Sample]:
    known = [cell.last.buffered for cell in row.cells if cell.last is not None and cell.last.success and cell.last.buffered is not None]
    return [_run_sample(row, float(any(known)))] if known else []


def _histogram(row: ProbeRecord, cell: ProbeCell) -> HistogramSample:
    return HistogramSample(_cell_labels(row, cell), TTFT_BOUNDS, cell.cumulative, cell.sum)
