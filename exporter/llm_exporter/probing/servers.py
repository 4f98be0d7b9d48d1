"""What a server says about itself: models, context limit, engine, version, and the conditions that a comparison must state.

In: base URL and headers. Out: `ServerFacts`. Called in the child process (for the name of the model) and by the command line.
Only GET requests that cost the engine nothing; no redirect is followed, so credentials stay with the host that they are for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import requests
import urllib3

from llm_exporter.config.tls import TlsAdapter
from llm_exporter.config.watch import Watch, pool_classes
from llm_exporter.errors import FetchError
from llm_exporter.probing.calls import USER_AGENT
from llm_exporter.sources.probe import TlsSettings

_MOST = 2**53  # more tokens or bytes than any server has
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ANSWER_LIMIT, _READ_BYTES = 4 * 2**20, 64 * 2**10


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts as the server gives them; None or empty where it does not.

    Attributes:
        models: served names, the first is the default for probes.
        context_tokens: longest prompt plus answer.
        kv_cache_capacity_tokens: tokens that fit into its KV cache, by its own figure.
        kv_cache_bytes: memory of that cache on one GPU, by its own figure.
        conditions: dtype, quantisation, KV dtype, prefix cache, parallelism…: as text, under the server's own names made common.
    """

    models: tuple[str, ...] = ()
    engine: str = ""
    engine_version: str = ""
    context_tokens: int | None = None
    kv_cache_capacity_tokens: int | None = None
    kv_cache_bytes: float | None = None
    conditions: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For the pipe between the processes."""
        return asdict(self)


class Asker:
    """GETs below one base URL.

    Args:
        timeout_seconds: for one GET in all, a slow head or body included.
    """

    def __init__(self, url: str, headers: Mapping[str, str], tls: TlsSettings, timeout_seconds: float = 10.0) -> None:
        self._base, self._timeout = url.rstrip("/"), timeout_seconds
        self._headers = {"User-Agent": USER_AGENT, **headers}
        self._context = tls.context() if url.lower().startswith("https:") else None
        self._server_name = tls.server_name

    def text(self, path: str, accept: str = "*/*") -> str:
        """The body.

        Raises:
            FetchError: by the words of the probe's results.
        """
        slow = FetchError("timeout", f"GET {path}: no whole answer within {self._timeout:g} s")
        with Watch(self._timeout) as watch, requests.Session() as session:
            session.trust_env = False  # no proxy, no netrc: only what the configuration says
            for scheme in ("http://", "https://"):
                session.mount(scheme, TlsAdapter(self._context, self._server_name, pool_classes(watch)))
            try:
                body = self._body(session, path, accept)
            except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                raise (slow if watch.over else self._failure(path, error)) from None
        if watch.over:
            raise slow
        return body.decode("utf-8", "replace")

    def _body(self, session: requests.Session, path: str, accept: str) -> bytes:
        headers = {**self._headers, "Accept": accept}
        with session.get(self._base + path, timeout=self._timeout, allow_redirects=False, headers=headers, stream=True) as answer:
            if answer.status_code != 200:
                raise FetchError(f"http_{answer.status_code}", f"GET {path} answers {answer.status_code}")
            body = b""
            while len(body) < _ANSWER_LIMIT and (piece := answer.raw.read1(_READ_BYTES, decode_content=True)):
                body += piece
            return body[:_ANSWER_LIMIT]

    def _failure(self, path: str, error: Exception) -> FetchError:
        if isinstance(error, requests.exceptions.SSLError) or "server_hostname" in str(error):
            verify = "CERTIFICATE_VERIFY_FAILED" in str(error)
            return FetchError("tls_verify" if verify else "tls", f"TLS to {self._base} fails")
        if isinstance(error, requests.exceptions.Timeout):
            return FetchError("timeout", f"GET {path}: no answer within {self._timeout:g} s")
        if isinstance(error, requests.exceptions.ConnectionError) and not isinstance(error.args[0], urllib3.exceptions.ProtocolError):
            unresolved = "NameResolution" in repr(error) or "getaddrinfo" in repr(error)
            return FetchError("dns" if unresolved else "connect", f"cannot connect to {self._base}")
        return FetchError("truncated", f"GET {path}: the answer breaks off or is no HTTP ({type(error).__name__})")

    def json(self, path: str) -> Any:
        """The parsed body, None where it is no JSON."""
        try:
            return json.loads(self.text(path, "application/json"))
        except (ValueError, RecursionError):
            return None

    def try_json(self, path: str) -> dict[str, Any]:
        """An object, empty where the path gives none."""
        try:
            answer = self.json(path)
        except FetchError:
            return {}
        return answer if isinstance(answer, dict) else {}


def list_models(asker: Asker) -> tuple[list[str], int | None]:
    """(served names, context limit of the first) from `/v1/models`.

    Raises:
        FetchError: as `Asker.text`.
    """
    answer = asker.json("/v1/models")
    rows = answer.get("data") if isinstance(answer, dict) else None
    rows = [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)] if isinstance(rows, list) else []
    return [row["id"] for row in rows], _whole(rows[0].get("max_model_len")) if rows else None


def describe(asker: Asker) -> ServerFacts:
    """All that the server tells. Missing pages are no error; `/v1/models` is asked first and its failure is.

    Raises:
        FetchError: nothing answers at all.
    """
    try:
        models, context = list_models(asker)
    except FetchError as error:
        if not error.reason.startswith("http_"):
            raise
        models, context = [], None
    sglang = asker.try_json("/model_info") or asker.try_json("/get_model_info")
    server = asker.try_json("/server_info") or asker.try_json("/get_server_info")
    try:
        page = asker.text("/metrics", "text/plain;version=0.0.4")
    except FetchError:
        page = ""
    if sglang or "sglang:" in page or "sglang_" in page:
        return _sglang(models, context, sglang, server, page)
    version = asker.try_json("/version").get("version")
    if "vllm:" in page or isinstance(version, str):
        return _vllm(models, context, version if isinstance(version, str) else "", page)
    return ServerFacts(models=tuple(models), context_tokens=context)


def _sglang(models: list[str], context: int | None, info: dict[str, Any], server: dict[str, Any], page: str) -> ServerFacts:
    names = {
        "dtype": "precision", "quantization": "quantization", "kv_cache_dtype": "kv_cache_dtype", "tp_size": "tensor_parallel",
        "dp_size": "data_parallel", "attention_backend": "attention_backend", "chunked_prefill_size": "chunked_prefill_tokens",
        "device": "device", "speculative_algorithm": "speculative_decoding",
    }  # fmt: skip
    conditions = {ours: str(server[theirs]) for theirs, ours in names.items() if server.get(theirs) not in (None, "")}
    if isinstance(server.get("disable_radix_cache"), bool):
        conditions["prefix_cache"] = "off" if server["disable_radix_cache"] else "on"
    page_size = _whole(server.get("page_size")) or _whole(_first_value(page, "page_size"))
    if page_size:
        conditions["kv_cache_block_tokens"] = str(page_size)
    capacity = _whole(server.get("max_total_num_tokens")) or _whole(_first_value(page, "max_total_num_tokens"))
    memory = _first_value(page, "kv_cache_memory_usage_gb")  # its GB is 2**30
    model_path = info.get("model_path")
    if not models and isinstance(model_path, str):
        models = [model_path]
    limit = _whole(info.get("max_context_length")) or _whole(server.get("context_length")) or context
    return ServerFacts(
        models=tuple(models),
        engine="sglang",
        engine_version=str(server.get("version") or ""),
        context_tokens=limit,
        kv_cache_capacity_tokens=capacity,
        kv_cache_bytes=memory * 2**30 if memory else None,
        conditions=conditions,
    )


def _vllm(models: list[str], context: int | None, version: str, page: str) -> ServerFacts:
    labels: dict[str, str] = {}
    for line in page.splitlines():
        if line.startswith("vllm:cache_config_info{"):
            labels = dict(_LABEL.findall(line))
            break
    known = {key: value for key, value in labels.items() if value not in ("None", "")}
    conditions = {}
    if known.get("enable_prefix_caching"):
        conditions["prefix_cache"] = "on" if known["enable_prefix_caching"] == "True" else "off"
    for theirs, ours in (("cache_dtype", "kv_cache_dtype"), ("block_size", "kv_cache_block_tokens")):
        if theirs in known:
            conditions[ours] = known[theirs]
    capacity, blocks, block = (_whole(known.get(name)) for name in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size"))
    memory = _whole(known.get("kv_cache_memory_bytes"))
    return ServerFacts(
        models=tuple(models),
        engine="vllm",
        engine_version=version,
        context_tokens=context,
        kv_cache_capacity_tokens=capacity or (_whole(blocks * block) if blocks and block else None),
        kv_cache_bytes=float(memory) if memory else None,
        conditions=conditions,
    )


def _first_value(page: str, name: str) -> float | None:
    """Value of the first sample of an SGLang gauge, under either spelling of its prefix; None where it is no positive number."""
    match = re.search(rf"^sglang[:_]{name}(?:\{{[^\n]*\}})? (\S+)", page, re.MULTILINE)
    try:
        value = float(match[1]) if match else 0.0
    except ValueError:
        return None
    return value if 0 < value < _MOST else None


def _whole(value: object) -> int | None:
    """A positive whole number as JSON, a label or a gauge has it; None for everything else, and for what no server can mean."""
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"[0-9]{1,16}", value) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MOST:
        return None
    return int(value)
