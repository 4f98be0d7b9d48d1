"""The /metrics page of a simulated SGLang: every series moves at the moment at which the real one moves it.

Refreshed at each prefill report, every 40 decode steps and when idle: running, queued, token usage, throughput. As
work happens: realtime and effective tokens, CUDA graph passes. At the first forward: queue time. At finish (aborts
too): prompt, generated and cached tokens, latencies.
"""

# ruff: noqa: D102, ARG002 - the methods of an Observer are described there and take what it passes

from __future__ import annotations

from llm_exporter.demo.model import Engine
from llm_exporter.demo.promtext import Page
from llm_exporter.demo.request import Observer, Request, State, Step
from llm_exporter.demo.scheduling import SglangEngine

RELEASES = ("0.5.23", "0.5.10", "0.4.6")
DECODE_LOG_INTERVAL = 40
_KEEPS_HIT_RATE = ("0.5.23",)  # before 0.5.20 each decode report set cache_hit_rate to 0
_STAGES = {  # shares of the scheduler's host time per step, by stage
    "recv_requests": 0.10,
    "process_input_requests": 0.08,
    "get_next_batch_to_run": 0.30,
    "process_batch_result": 0.42,
    "other": 0.10,
}


def negotiated(text: str, accept: str) -> tuple[str, str]:
    """Page and content type for an `Accept` header: as the real server, whose names depend on it.

    Without `escaping=allow-utf-8`, OpenMetrics gives samples called `sglang_x` below HELP and TYPE of `sglang:x`.
    """
    first = accept.partition(",")[0].replace(" ", "")
    utf8 = "escaping=allow-utf-8" in first
    if first.startswith("application/openmetrics-text"):
        lines = []
        for line in text.splitlines():
            if line.startswith("# TYPE") and line.endswith(" counter"):
                line = line.replace("_total counter", " counter")
            elif line.startswith("# HELP"):
                line = line.replace("_total ", " ", 1)
            elif not utf8 and not line.startswith("#"):
                line = line.replace("sglang:", "sglang_", 1)
            lines.append(line)
        escaping = "allow-utf-8" if utf8 else "underscores"
        kind = f"application/openmetrics-text; version=1.0.0; charset=utf-8; escaping={escaping}"
        return "\n".join(lines) + "\n# EOF\n", kind
    if utf8:
        return text, "text/plain; version=1.0.0; charset=utf-8; escaping=allow-utf-8"
    return text, SglangPage.content_type


class SglangPage(Observer):
    """One server's page.

    Args:
        engine: the engine to watch; the page adds itself to its observers.
        release: one of RELEASES.
        model: served model name.
        wall_at: unix time that belongs to the model's time 0.
        pid: of the scheduler process; a label of two gauges.
    """

    content_type = "text/plain; version=0.0.4; charset=utf-8"  # unless something else is accepted: `negotiated`

    def __init__(self, engine: Engine, release: str = "0.5.23", *, model: str, wall_at: float = 0.0, pid: int = 4202) -> None:
        self._engine = engine
        self._release = release
        hardware = engine.hardware
        on_gpu = hardware.gpus > 0
        self._decode_mode = "decode_cuda_graph" if on_gpu else "decode_none"
        self.page = page = Page(
            f"sglang-{release}",
            {
                "MODEL": model,
                "PID": str(pid),
                "BLOCK": str(hardware.block_tokens),
                "BLOCKS": str(hardware.kv_blocks),
            },
            always_headers=False,
            created_at=wall_at + engine.now,
            renames={'mode="decode_none"': f'mode="{self._decode_mode}"'},
        )
        self._on_gpu = on_gpu
        for name, value in (
            ("sglang:max_total_num_tokens", hardware.kv_tokens),
            ("sglang:page_size", hardware.block_tokens),
            ("sglang:num_pages", hardware.kv_blocks),
            ("sglang:context_len", hardware.context_tokens),
        ):
            page.set(name, float(value))
        self._split = 'sglang:num_requests_total{is_streaming="true"}' in page
        self.queue = page.histogram("sglang:queue_time_seconds")
        self.request_process = page.histogram('sglang:per_stage_req_latency_seconds{stage="request_process"}')
        self.prefill_forward = page.histogram('sglang:per_stage_req_latency_seconds{stage="prefill_forward"}')
        self.chunked_prefill = page.histogram('sglang:per_stage_req_latency_seconds{stage="chunked_prefill"}')
        self.gap = page.histogram("sglang:inter_token_latency_seconds")
        self.prompt_lengths = page.histogram("sglang:prompt_tokens_histogram")
        self.uncached_lengths = page.histogram("sglang:uncached_prompt_tokens_histogram")
        self.output_lengths = page.histogram("sglang:generation_tokens_histogram")
        self.eviction = page.histogram("sglang:eviction_duration_seconds")
        self.retractions_per_request = page.histogram("sglang:num_retractions")
        self._counters: dict[str, float] = {}
        self._admitted_hits = self._admitted_first_hits = 0
        self._evicted = 0
        self._decodes_since_report = 0
        self._tokens_since_report = 0
        self._reported_at = engine.now
        self._retracted_since_report = 0
        self._queue_latencies: list[float] = []
        self._first_chunk_at: dict[Request, float] = {}
        self._idle_since: float | None = engine.now
        self._http: dict[tuple[str, str], list[int]] = {}  # (endpoint, method) → received, answered
        self._answers: dict[tuple[str, str, str], float] = {}
        engine.observers.append(self)

    def _add(self, key: str, value: float) -> None:
        self._counters[key] = self._counters.get(key, 0.0) + value

    def _streaming(self, name: str, request: Request) -> str:
        """The name of a tokenizer metric, with the label that tells streams apart where this release has it."""
        return f'{name}{{is_streaming="{str(request.streaming).lower()}"}}' if self._split else name

    # -- scheduler process -----------------------------------------------------------------------------------

    def queued(self, request: Request, now: float) -> None:
        if self._idle_since is not None:
            self._add("sglang:scheduler_idle_seconds_total", now - self._idle_since)
            self._add('sglang:scheduler_stage_seconds_total{category="idle"}', 0.45 * (now - self._idle_since))
            self._idle_since = None

    def scheduled(self, request: Request, now: float) -> None:
        assert request.scheduled_at is not None
        self.request_process.observe(0.0002)
        waited = request.scheduled_at - request.queued_at
        self.queue.observe(waited)
        self._queue_latencies.append(waited)
        self._admitted_hits += request.hit_tokens or 0
        self._admitted_first_hits += request.hit_tokens or 0

    def resumed(self, request: Request, now: float, hit_tokens: int) -> None:
        self._admitted_hits += hit_tokens

    def preempted(self, request: Request, now: float, generated: int) -> None:
        self._first_chunk_at.pop(request, None)
        self._retracted_since_report += 1
        self._add("sglang:num_retracted_requests_total", 1)
        self._add("sglang:num_retracted_input_tokens_total", request.prompt_tokens)
        self._add("sglang:num_retracted_output_tokens_total", generated)

    def step_ended(self, step: Step, now: float) -> None:
        for stage, share in _STAGES.items():
            self._add(f'sglang:scheduler_stage_seconds_total{{category="{stage}"}}', step.host_seconds * share)
        rest = max(0.0, step.seconds - step.host_seconds)
        self._add('sglang:scheduler_stage_seconds_total{category="run_batch"}', rest)
        self._add("sglang:scheduler_process_cpu_seconds_total", step.seconds)
        evicted = self._engine.pool.evicted
        if evicted > self._evicted:
            tokens = (evicted - self._evicted) * self._engine.hardware.block_tokens
            self._evicted = evicted
            self._add("sglang:evicted_tokens_total", tokens)
            self.eviction.observe(2e-4)
        if step.chunks:
            self._prefill_report(step, now)
        else:
            self._add('sglang:realtime_tokens_total{mode="decode"}', step.decodes)
            self._add(f'sglang:cuda_graph_passes_total{{mode="{self._decode_mode}"}}', 1)
            self._tokens_since_report += step.decodes
            self._decodes_since_report += 1
            if self._decodes_since_report >= DECODE_LOG_INTERVAL:
                self._decode_report(now)

    def _prefill_report(self, step: Step, now: float) -> None:
        add = self._add
        fresh = sum(tokens for request, tokens, _ in step.chunks if not request.preemptions)
        add('sglang:realtime_tokens_total{mode="prefill_compute"}', step.prefill_tokens)
        if self._admitted_hits:
            add('sglang:realtime_tokens_total{mode="prefill_cache"}', self._admitted_hits)
        add('sglang:prefill_effective_tokens_total{mode="input"}', fresh)
        add('sglang:prefill_effective_tokens_total{mode="device_hit"}', self._admitted_first_hits)
        add('sglang:cuda_graph_passes_total{mode="prefill_none"}', 1)
        looked_up = self._admitted_hits + step.prefill_tokens
        if looked_up:
            self.page.set("sglang:cache_hit_rate", self._admitted_hits / looked_up)
        self._admitted_hits = self._admitted_first_hits = 0
        for request, _, epoch in step.chunks:
            if request.epoch != epoch or request.preemptions:
                continue
            began = self._first_chunk_at.setdefault(request, step.started_at)
            if request.state is State.PREFILL:
                self.chunked_prefill.observe(step.seconds)
            else:
                del self._first_chunk_at[request]
                self.prefill_forward.observe(now - began)
        if self._queue_latencies:
            mean = sum(self._queue_latencies) / len(self._queue_latencies)
            self.page.set("sglang:avg_request_queue_latency", mean)
            self._queue_latencies.clear()
        self._snapshot(len(self._engine.running) - len(step.chunks))

    def _decode_report(self, now: float) -> None:
        passed = max(1e-6, now - self._reported_at)
        self.page.set("sglang:gen_throughput", self._tokens_since_report / passed)
        self.page.set("sglang:is_cuda_graph", float(self._on_gpu))
        if self._release not in _KEEPS_HIT_RATE:
            self.page.set("sglang:cache_hit_rate", 0.0)
        self._reported_at = now
        self._decodes_since_report = self._tokens_since_report = 0
        self._snapshot(len(self._engine.running))

    def idle(self, now: float) -> None:
        self._idle_since = now
        self.page.set("sglang:gen_throughput", 0.0)
        self._snapshot(0)

    def _snapshot(self, running: int) -> None:
        """The gauges of a report: what they say holds until the next one."""
        engine, put = self._engine, self.page.set
        block, pool = engine.hardware.block_tokens, engine.pool
        used, evictable = pool.in_use * block, pool.cached * block
        usage = pool.in_use / pool.capacity
        put("sglang:num_running_reqs", float(max(0, running)))
        put("sglang:num_queue_reqs", float(len(engine.waiting)))
        put("sglang:token_usage", round(usage, 2))
        put("sglang:full_token_usage", usage)
        put("sglang:num_used_tokens", float(used))
        put("sglang:kv_used_tokens", float(used))
        put("sglang:kv_evictable_tokens", float(evictable))
        put("sglang:kv_available_tokens", float(engine.hardware.kv_tokens - used - evictable))
        put("sglang:decode_sum_seq_lens", float(engine.context))
        put("sglang:num_retracted_reqs", float(self._retracted_since_report))
        self._retracted_since_report = 0
        if isinstance(engine, SglangEngine):
            put("sglang:new_token_ratio", engine.new_token_ratio)

    # -- tokenizer process -----------------------------------------------------------------------------------

    def arrived(self, request: Request, now: float) -> None:
        self.http_received(request.route, "POST")

    def first_token(self, request: Request, now: float) -> None:
        assert request.first_token_sent_at is not None
        name = self._streaming("sglang:time_to_first_token_seconds", request)
        self.page.histogram(name).observe(request.first_token_sent_at - request.arrived_at)

    def gaps(self, seconds: float, count: int) -> None:
        self.gap.observe(seconds, count)

    def finished(self, request: Request, now: float) -> None:
        self._ended(request, request.finished_at or now)
        decode = request.last_token_at - (request.first_token_at or now)
        if request.generated > 1:
            name = self._streaming("sglang:request_time_per_output_token_seconds", request)
            self.page.histogram(name).observe(decode / (request.generated - 1))
        self.http_answered(request.route, "POST", "200")

    def aborted(self, request: Request, now: float, before: State) -> None:
        self._first_chunk_at.pop(request, None)
        if before is not State.FRONTEND:
            self._add("sglang:num_aborted_requests_total", 1)
            self._ended(request, now)
        self.http_answered(request.route, "POST", "200")

    def rejected(self, request: Request, now: float, in_stream: bool) -> None:
        self.http_answered(request.route, "POST", "503")

    def _ended(self, request: Request, at: float) -> None:
        add, hit = self._add, request.hit_tokens or 0
        add(self._streaming("sglang:prompt_tokens_total", request), request.prompt_tokens)
        add(self._streaming("sglang:generation_tokens_total", request), request.generated)
        add(self._streaming("sglang:num_requests_total", request), 1)
        if hit:
            source = "total" if self._release == "0.5.10" else "device"
            add("sglang:cached_tokens_total" + ("" if self._release == "0.4.6" else f'{{cache_source="{source}"}}'), hit)
        self.page.histogram(self._streaming("sglang:e2e_request_latency_seconds", request)).observe(at - request.arrived_at)
        self.prompt_lengths.observe(request.prompt_tokens)
        self.uncached_lengths.observe(request.prompt_tokens - hit)
        self.output_lengths.observe(request.generated)
        self.retractions_per_request.observe(request.preemptions)

    # -- HTTP ------------------------------------------------------------------------------------------------

    def http_received(self, endpoint: str, method: str) -> None:
        """A request line was read."""
        self._http.setdefault((endpoint, method), [0, 0])[0] += 1

    def http_answered(self, endpoint: str, method: str, status: str) -> None:
        """Its answer is complete."""
        self._http.setdefault((endpoint, method), [0, 0])[1] += 1
        name = (endpoint, method, status)
        self._answers[name] = self._answers.get(name, 0.0) + 1

    def _http_lines(self) -> None:
        page = self.page
        if not page.has_family("sglang:http_requests_total"):
            return
        for (endpoint, method), (received, answered) in self._http.items():
            labels = f'{{endpoint="{endpoint}",method="{method}"}}'
            for family, value in (("sglang:http_requests_active", received - answered), ("sglang:http_requests_total", received)):
                if family + labels not in page:
                    page.new_series(family, family, {"endpoint": endpoint, "method": method})
                page.set(family + labels, float(value))
        family = "sglang:http_responses_total"
        for (endpoint, method, status), answers in self._answers.items():
            key = f'{family}{{endpoint="{endpoint}",method="{method}",status_code="{status}"}}'
            if key not in page:
                page.new_series(family, family, {"endpoint": endpoint, "method": method, "status_code": status})
            page.set(key, answers)

    # -- page ------------------------------------------------------------------------------------------------

    def render(self, now: float) -> str:
        """The page at `now`."""
        put = self.page.set
        if self._idle_since is not None and not self._engine.conditions.hung:
            self._add("sglang:scheduler_idle_seconds_total", now - self._idle_since)
            self._add('sglang:scheduler_stage_seconds_total{category="idle"}', 0.45 * (now - self._idle_since))
            self._add("sglang:scheduler_process_cpu_seconds_total", 0.9 * (now - self._idle_since))
            self._idle_since = now
        for key, value in self._counters.items():
            put(key, value)
        busy = self._engine.frontend_busy_seconds
        put('sglang:process_cpu_seconds_total{component="tokenizer"}', round(2.9 + busy, 2))
        put('sglang:process_cpu_seconds_total{component="detokenizer"}', round(0.75 + 0.3 * busy, 2))
        self._http_lines()
        return self.page.render()
