"""HTTP servers of the simulated engines: routes, headers, streams and errors of a real vLLM or SGLang, on loopback.

A request from outside waits, is prefilled and decoded in the same model as the simulated load, and its tokens are
sent when the model has them.
"""

from __future__ import annotations

import json
import random
import select
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty
from typing import Any, ClassVar

from llm_exporter.demo import facts, protocol
from llm_exporter.demo.live import Event, Pacer, Ticket, learn, request_of
from llm_exporter.demo.pages_sglang import SglangPage, negotiated
from llm_exporter.demo.pages_vllm import VllmPage
from llm_exporter.demo.simulation import Simulation
from llm_exporter.demo.text import tokens_of

_STREAM = "text/event-stream; charset=utf-8"
_BODY_LIMIT = 16 << 20
_POLL_SECONDS = 0.25  # how often a waiting handler looks whether its client is still there
_HEALTH_SECONDS = 20.0  # SGLang's own limit for the token that its /health asks for
_UNCOUNTED = ("/metrics", "/health", "/load", "/ping", "/version", "/server_info")  # vLLM's http_* leaves these out
_COUNTED_SGLANG = (
    *("/metrics", "/health", "/health_generate", "/ready", "/model_info", "/get_model_info", "/server_info"),
    *("/get_server_info", "/v1/loads", "/v1/models", "/flush_cache", protocol.CHAT, protocol.COMPLETIONS, protocol.GENERATE),
)
_ROUTES = {
    "vllm": (protocol.CHAT, protocol.COMPLETIONS),
    "sglang": (protocol.CHAT, protocol.COMPLETIONS, protocol.GENERATE),
}


class EngineServer:
    """One simulated engine behind HTTP.

    Args:
        simulation: moved by the pacer.
        pacer: shared by all servers of the demo.
        port: 0 for one that the kernel chooses.
    """

    def __init__(self, simulation: Simulation, pacer: Pacer, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.simulation = simulation
        self.pacer = pacer
        self.random = random.Random(7)  # noqa: S311 - a simulation, no secret
        self.requests = 0
        handler = type("Handler", (_Handler,), {"engine": self})
        self._http = _Http((host, port), handler)
        self.url = f"http://{host}:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.2,), name=f"demo-{simulation.kind}", daemon=True)

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(timeout=2.0)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256


class _Gone(Exception):
    """The client went away."""


class _Handler(BaseHTTPRequestHandler):
    engine: ClassVar[EngineServer]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 600.0

    # -- plumbing --------------------------------------------------------------------------------------------

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is http.server's
        """No access log."""

    def version_string(self) -> str:
        """What both real servers run on."""
        return "uvicorn"

    def _answer(self, status: int, body: bytes = b"", content_type: str = "application/json") -> None:
        self._count(status, len(body))
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if body:
            self.send_header("content-type", content_type)
        self.end_headers()
        self.wfile.write(body)

    def _json(self, status: int, body: object) -> None:
        self._answer(status, json.dumps(body, separators=(",", ":")).encode())

    def _count(self, status: int, size: int) -> None:
        """The engine's own HTTP metrics of what does not enter the model (it counts the rest itself)."""
        path, engine = self._path(), self.engine
        with engine.pacer.lock:
            page = engine.simulation.page
            if isinstance(page, SglangPage):
                if path not in _COUNTED_SGLANG:
                    return
                if path != "/metrics":  # counted before its page was made
                    page.http_received(path, self.command)
                page.http_answered(path, self.command, str(status))
            elif isinstance(page, VllmPage) and path not in _UNCOUNTED:
                known = path in _ROUTES["vllm"] or path == "/v1/models"
                page.http(path if known else "none", self.command, f"{status // 100}xx", 0.001, self._length() or 0, size)

    def _length(self) -> int | None:
        """The request's Content-Length, 0 without one; None for one that is no number or too large."""
        text = self.headers.get("content-length") or "0"
        return int(text) if text.isascii() and text.isdigit() and int(text) <= _BODY_LIMIT else None

    def _path(self) -> str:
        return self.path.partition("?")[0]

    # -- GET -------------------------------------------------------------------------------------------------

    def do_GET(self) -> None:
        """Metrics, health and what the server says about itself."""
        engine, path = self.engine, self._path()
        simulation = engine.simulation
        if path.rstrip("/") == "/metrics":
            if isinstance(simulation.page, SglangPage):
                with engine.pacer.lock:
                    simulation.page.http_received("/metrics", "GET")
            text = engine.pacer.metrics_text(simulation)
            kind = simulation.page.content_type
            if simulation.kind == "sglang":
                text, kind = negotiated(text, self.headers.get("accept") or "")
            self._answer(200, text.encode(), kind)
        elif path == "/v1/models":
            self._json(200, facts.models(simulation))
        elif simulation.kind == "vllm":
            self._get_vllm(path)
        else:
            self._get_sglang(path)

    def _get_vllm(self, path: str) -> None:
        simulation = self.engine.simulation
        if path in ("/health", "/ping"):
            self._answer(200)  # it says 200 while the engine hangs, as the real one does
        elif path == "/version":
            self._json(200, {"version": simulation.release})
        elif path == "/load":
            self._json(200, {"server_load": 0})
        else:
            self._json(404, {"detail": "Not Found"})

    def _get_sglang(self, path: str) -> None:
        simulation = self.engine.simulation
        if path in ("/health", "/health_generate"):
            self._sglang_health()
        elif path in ("/ready", "/ping"):
            self._answer(200)
        elif path in ("/model_info", "/get_model_info"):
            body = {"model_path": simulation.model_name, "tokenizer_path": simulation.model_name, "is_generation": True}
            self._json(200, body | {"preferred_sampling_params": None, "weight_version": "default"})
        elif path in ("/server_info", "/get_server_info"):
            self._json(200, facts.server_info(simulation))
        elif path == "/v1/loads":
            with self.engine.pacer.lock:
                loads = facts.loads(simulation, self.engine.pacer.now())
            self._json(200, loads)
        else:
            self._json(404, {"detail": "Not Found"})

    def _sglang_health(self) -> None:
        """SGLang asks its engine for a token, so a hung engine is found out, after a while."""
        engine = self.engine.simulation.engine
        for _ in range(int(_HEALTH_SECONDS)):
            time.sleep(1.0)
            if not engine.conditions.hung:
                self._answer(200)
                return
        self._answer(503)

    # -- POST ------------------------------------------------------------------------------------------------

    def do_POST(self) -> None:
        """Inference routes, and the tokenizer."""
        length = self._length()
        if length is None:
            self.close_connection = True
            self._json(413, {"detail": "Content-Length is missing, wrong or above 16 MiB"})
            return
        raw = self.rfile.read(length)
        path, kind = self._path(), self.engine.simulation.kind
        if path in _ROUTES[kind]:
            self._infer(path, raw)
        elif path == "/tokenize":
            self._tokenize(raw)
        elif kind == "sglang" and path == "/flush_cache":
            with self.engine.pacer.lock:
                self.engine.simulation.engine.pool.clear_idle()
            self._answer(200, b"Cache flushed.\n", "text/plain; charset=utf-8")
        else:
            self._json(404, {"detail": "Not Found"})

    def _tokenize(self, raw: bytes) -> None:
        try:
            tokens = tokens_of(str(json.loads(raw)["prompt"]))
        except (ValueError, KeyError, TypeError):
            self._json(400, {"error": {"message": "prompt is required", "type": "Bad Request", "param": None, "code": 400}})
            return
        limit = self.engine.simulation.engine.hardware.context_tokens
        self._json(200, {"count": len(tokens), "max_model_len": limit, "tokens": list(range(len(tokens)))})

    def _infer(self, path: str, raw: bytes) -> None:
        engine = self.engine
        simulation, pacer = engine.simulation, engine.pacer
        engine.requests += 1
        try:
            call = protocol.checked(
                simulation.kind,
                path,
                raw,
                model=simulation.model_name,
                context_tokens=simulation.engine.hardware.context_tokens,
                number=engine.requests,
                now=time.time(),
                luck=engine.random.random(),
            )
        except protocol.Refusal as refusal:
            self._refuse(refusal)
            return
        request = request_of(call, simulation.engine.hardware)
        ticket = Ticket()
        pacer.submit(simulation, request, ticket)
        try:
            if call.stream:
                self._stream(call, ticket)
            else:
                self._reply(call, ticket)
        except (_Gone, OSError):
            self.close_connection = True
        finally:
            pacer.leave(simulation, ticket)

    def _refuse(self, refusal: protocol.Refusal) -> None:
        if refusal.in_stream:
            self._count(200, 0)
            self._begin_stream()
            self._send_events([refusal.body])
            self._end_stream()
        else:
            self._json(refusal.status, refusal.body)

    def _next(self, ticket: Ticket) -> Event:
        """The next event of the request, at the moment at which the front end would send it."""
        while True:
            try:
                event = ticket.events.get(timeout=_POLL_SECONDS)
            except Empty:
                readable, _, _ = select.select([self.connection], [], [], 0)
                if readable and not self.connection.recv(1, 2):  # MSG_PEEK
                    raise _Gone from None
                continue
            self.engine.pacer.sleep_until(event.at)
            return event

    def _raw_json(self, status: int, body: object) -> None:
        """An answer that the model's page has counted already."""
        data = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(data)

    def _reply(self, call: protocol.Call, ticket: Ticket) -> None:
        while True:
            event = self._next(ticket)
            if event.kind == "token":
                learn(call, ticket.request)
                protocol.token_event(call, None)
            elif event.kind == "reject":
                refusal = protocol.busy(call.kind)
                self._raw_json(refusal.status, refusal.body)
                return
            else:
                self._raw_json(200, protocol.whole(call, ticket.request.finish_reason))
                return

    def _stream(self, call: protocol.Call, ticket: Ticket) -> None:
        begun = False
        if call.kind == "vllm" and not self._refused_at_once(ticket):
            self._begin_stream()  # vLLM sends its headers before the first token, SGLang with it
            begun = True
        opened = False
        while True:
            event = self._next(ticket)
            if event.kind == "reject":
                refusal = protocol.busy(call.kind)
                if not begun:
                    self._raw_json(refusal.status, refusal.body)
                    return
                self._send_events([refusal.body], spaced=True)
                self._end_stream()
                return
            if event.kind != "token":
                self._end_stream()
                return
            if not begun:
                self._begin_stream()
                begun = True
            events = [] if opened else protocol.opening(call)
            opened = True
            learn(call, ticket.request)
            last = len(call.sent) + 1 >= ticket.request.output_tokens
            events += protocol.token_event(call, ticket.request.finish_reason if last else None)
            if last:
                events += protocol.closing(call)
            self._send_events(events)

    @staticmethod
    def _refused_at_once(ticket: Ticket) -> bool:
        return ticket.request.state == "rejected"

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", _STREAM)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def _send_events(self, events: list[dict[str, Any]], *, spaced: bool = False) -> None:
        separators = (", ", ": ") if spaced else (",", ":")
        data = b"".join(f"data: {json.dumps(event, separators=separators, ensure_ascii=False)}\n\n".encode() for event in events)
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _end_stream(self) -> None:
        self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
