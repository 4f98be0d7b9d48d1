"""The /metrics page of a simulated vLLM: every series moves at the moment at which the real one moves it.

Live with each step: gauges, generated tokens, inter-token latency, preemptions. At admission: prefix cache. At the
first token: TTFT, prompt tokens. Only when a request finishes: queue, prefill, decode and end-to-end time, outcomes.
A client that leaves shows nowhere but in http_*.
"""

# ruff: noqa: D102, ARG002 - the methods of an Observer are described there and take what it passes

from __future__ import annotations

from llm_exporter.demo.model import Engine
from llm_exporter.demo.promtext import Page
from llm_exporter.demo.request import Observer, Request, State, Step

RELEASES = ("0.32.0", "0.11.2", "0.10.2")
# Up to 0.11.0 the prefix cache was counted again when a preempted request came back.
_COUNTS_RESUMED = ("0.10.2",)
_HTTP_BOUNDS = (0.1, 0.5, 1.0)


class VllmPage(Observer):
    """One server's page.

    Args:
        engine: the engine to watch; the page adds itself to its observers.
        release: one of RELEASES.
        model: served model name.
        wall_at: unix time that belongs to the model's time 0.
    """

    content_type = "text/plain; version=1.0.0; charset=utf-8"  # whatever the client accepts

    def __init__(self, engine: Engine, release: str = "0.32.0", *, model: str, wall_at: float = 0.0) -> None:
        self._engine = engine
        self._wall_at = wall_at
        self._counts_resumed = release in _COUNTS_RESUMED
        hardware = engine.hardware
        started = wall_at + engine.now
        self.page = page = Page(
            f"vllm-{release}",
            {
                "MODEL": model,
                "BLOCK": str(hardware.block_tokens),
                "BLOCKS": str(hardware.kv_blocks),
                "TOKENS": str(hardware.kv_tokens),
                "CONCURRENCY": str(hardware.kv_tokens / hardware.context_tokens),
            },
            always_headers=True,
            created_at=started,
        )
        page.set("process_start_time_seconds", round(started, 2))
        histogram = page.histogram
        self.ttft = histogram("vllm:time_to_first_token_seconds")
        self.gap_histograms = [
            histogram(name) for name in ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds") if name in page
        ]
        self.e2e = histogram("vllm:e2e_request_latency_seconds")
        self.queue = histogram("vllm:request_queue_time_seconds")
        self.inference = histogram("vllm:request_inference_time_seconds")
        self.prefill = histogram("vllm:request_prefill_time_seconds")
        self.decode = histogram("vllm:request_decode_time_seconds")
        self.per_token = histogram("vllm:request_time_per_output_token_seconds")
        self.prompt_lengths = histogram("vllm:request_prompt_tokens")
        self.output_lengths = histogram("vllm:request_generation_tokens")
        self.longest_output = histogram("vllm:request_max_num_generation_tokens")
        self.params_n = histogram("vllm:request_params_n")
        self.params_max = histogram("vllm:request_params_max_tokens")
        self.iteration = histogram("vllm:iteration_tokens_total")
        self.preemptions_per_request = histogram("vllm:request_num_preemptions")
        self.computed_per_request = histogram("vllm:request_prefill_kv_computed_tokens")
        self.http_duration = histogram("http_request_duration_highr_seconds")
        self._http: dict[tuple[str, str, str], float] = {}
        self._http_sizes: dict[str, list[float]] = {}
        self._success = dict.fromkeys(("stop", "length"), 0.0)
        self._prompt = self._hit = self._generated = 0.0
        self._queried = self._hit_at_admission = 0.0
        self._rejected = self._preempted = 0.0
        self._step_tokens = 0
        self._step_outputs = 0
        self._gauges = (0, 0, 0.0)  # running, waiting, KV usage, as the last step reported them
        engine.observers.append(self)

    # -- events ----------------------------------------------------------------------------------------------

    def scheduled(self, request: Request, now: float) -> None:
        self._queried += request.prompt_tokens
        self._hit_at_admission += request.hit_tokens or 0

    def resumed(self, request: Request, now: float, hit_tokens: int) -> None:
        if self._counts_resumed:
            self._queried += request.target
            self._hit_at_admission += hit_tokens

    def first_token(self, request: Request, now: float) -> None:
        assert request.first_token_sent_at is not None
        hit = request.hit_tokens or 0
        self.ttft.observe(request.first_token_sent_at - request.arrived_at)
        self._prompt += request.prompt_tokens
        self._hit += hit
        self._generated += 1
        self._step_tokens += request.prompt_tokens - hit + 1
        self._step_outputs += 1

    def gaps(self, seconds: float, count: int) -> None:
        for histogram in self.gap_histograms:
            histogram.observe(seconds, count)
        self._generated += count
        self._step_tokens += count
        self._step_outputs += count

    def preempted(self, request: Request, now: float, generated: int) -> None:
        self._preempted += 1

    def step_ended(self, step: Step, now: float) -> None:
        if self._step_outputs:
            self.iteration.observe(self._step_tokens)
            self._step_tokens = self._step_outputs = 0
        self._report()

    def idle(self, now: float) -> None:
        self._report()

    def _report(self) -> None:
        engine = self._engine
        self._gauges = (len(engine.running), len(engine.waiting), engine.pool.in_use / engine.pool.capacity)

    def finished(self, request: Request, now: float) -> None:
        assert request.scheduled_at is not None
        assert request.first_token_at is not None
        assert request.finished_at is not None
        prefill = request.first_token_at - request.scheduled_at
        decode = request.last_token_at - request.first_token_at
        e2e = request.finished_at - request.arrived_at
        self.e2e.observe(e2e)
        self.queue.observe(request.scheduled_at - request.queued_at)
        self.prefill.observe(prefill)
        self.decode.observe(decode)
        self.inference.observe(prefill + decode)
        self.per_token.observe(decode / (request.generated - 1) if request.generated > 1 else 0.0)
        self.prompt_lengths.observe(request.prompt_tokens)
        self.output_lengths.observe(request.generated)
        self.longest_output.observe(request.generated)
        self.params_n.observe(1)
        self.params_max.observe(request.max_tokens)
        self.preemptions_per_request.observe(request.preemptions)
        self.computed_per_request.observe(request.prompt_tokens - (request.hit_tokens or 0))
        self._success[request.finish_reason] += 1
        self.http(request.route, "POST", "2xx", e2e, request.prompt_tokens * 5, 0 if request.streaming else 700)

    def rejected(self, request: Request, now: float, in_stream: bool) -> None:
        self._rejected += 1
        self.http(request.route, "POST", "2xx" if in_stream else "5xx", 0.001, request.prompt_tokens * 5, 188)

    def aborted(self, request: Request, now: float, before: State) -> None:
        self.http(request.route, "POST", "2xx", now - request.arrived_at, request.prompt_tokens * 5, 0)

    # -- HTTP ------------------------------------------------------------------------------------------------

    def http(self, handler: str, method: str, status: str, seconds: float, request_bytes: int, response_bytes: int) -> None:
        """An answer of the API server: `status` 2xx, 4xx or 5xx; unknown routes have the handler "none"."""
        page = self.page
        self.http_duration.observe(seconds)
        name = (handler, method, status)
        if name not in self._http:
            labels = {"handler": handler, "method": method, "status": status}
            for family in ("http_requests_total", "http_requests_created"):
                page.new_series(family, family, labels)
            created = f'http_requests_created{{handler="{handler}",method="{method}",status="{status}"}}'
            page.set(created, self._wall_at + self._engine.now)
        self._http[name] = self._http.get(name, 0.0) + 1
        if handler not in self._http_sizes:
            for family in ("http_request_size_bytes", "http_response_size_bytes"):
                for suffix in ("_count", "_sum"):
                    page.new_series(family, family + suffix, {"handler": handler})
                page.new_series(f"{family}_created", f"{family}_created", {"handler": handler})
                page.set(f'{family}_created{{handler="{handler}"}}', self._wall_at + self._engine.now)
        sizes = self._http_sizes.setdefault(handler, [0.0, 0.0, 0.0])
        sizes[0] += 1
        sizes[1] += request_bytes
        sizes[2] += response_bytes
        family = "http_request_duration_seconds"
        labels = {"handler": handler, "method": method}
        key = f'{family}{{handler="{handler}",method="{method}"}}'
        if key not in page:
            page.new_histogram(family, labels, _HTTP_BOUNDS)
            page.new_series(f"{family}_created", f"{family}_created", labels)
            page.set(key.replace("seconds{", "seconds_created{"), self._wall_at + self._engine.now)
        page.histogram(key).observe(seconds)

    # -- page ------------------------------------------------------------------------------------------------

    def render(self, now: float) -> str:
        """The page at `now`; the front end answers it even while the engine hangs."""
        put = self.page.set
        running, waiting, usage = self._gauges
        put("vllm:num_requests_running", float(running))
        put("vllm:num_requests_waiting", float(waiting))
        put('vllm:num_requests_waiting_by_reason{reason="capacity"}', float(waiting))
        computed = self._prompt - self._hit
        for names, value in (
            (("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), usage),
            (("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"), self._queried),
            (("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"), self._hit_at_admission),
        ):
            for name in names:
                put(name, value)
        put('vllm:prompt_tokens_cached_by_source_total{source="device"}', self._hit_at_admission)
        put("vllm:prompt_tokens_total", self._prompt)
        put('vllm:prompt_tokens_by_source_total{source="local_compute"}', computed)
        put('vllm:prompt_tokens_by_source_total{source="local_cache_hit"}', self._hit)
        put("vllm:prompt_tokens_cached_total", self._hit)
        put("vllm:generation_tokens_total", self._generated)
        put("vllm:num_preemptions_total", self._preempted)
        for reason, value in self._success.items():
            put(f'vllm:request_success_total{{finished_reason="{reason}"}}', value)
        put('vllm:admission_rejections_total{reason="max_num_queued_reqs"}', self._rejected)
        put("process_cpu_seconds_total", round(14.07 + self._engine.frontend_busy_seconds, 2))
        for (handler, method, status), value in self._http.items():
            put(f'http_requests_total{{handler="{handler}",method="{method}",status="{status}"}}', value)
        for handler, (count, received, sent) in self._http_sizes.items():
            put(f'http_request_size_bytes_count{{handler="{handler}"}}', count)
            put(f'http_request_size_bytes_sum{{handler="{handler}"}}', received)
            put(f'http_response_size_bytes_count{{handler="{handler}"}}', count)
            put(f'http_response_size_bytes_sum{{handler="{handler}"}}', sent)
        return self.page.render()
