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
from llm_exporter.errors import FetchError
from llm_exporter.probing.calls import USER_AGENT
from llm_exporter.sources.probe import TlsSettings

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ANSWER_LIMIT = 4 * 2**20


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
    """GETs below one base URL."""

    def __init__(self, url: str, headers: Mapping[str, str], tls: TlsSettings, timeout_seconds: float = 10.0) -> None:
        self._base, self._timeout = url.rstrip("/"), timeout_seconds
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy, no netrc: only what the configuration says
        self._session.headers.update({"User-Agent": USER_AGENT, **headers})
        if tls.insecure_skip_verify:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the operator has asked for it
        if url.lower().startswith("https:"):
            self._session.mount("https://", TlsAdapter(tls.context(), tls.server_name))

    def text(self, path: str, accept: str = "*/*") -> str:
        """The body.

        Raises:
            FetchError: by the words of the probe's results.
        """
        try:
            with self._session.get(
                self._base + path, timeout=self._timeout, allow_redirects=False, headers={"Accept": accept}, stream=True
            ) as answer:
                body = answer.raw.read(_ANSWER_LIMIT, decode_content=True)
                if answer.status_code != 200:
                    raise FetchError(f"http_{answer.status_code}", f"GET {path} answers {answer.status_code}")
                return bytes(body).decode("utf-8", "replace")
        except requests.exceptions.SSLError as error:
            verify = "CERTIFICATE_VERIFY_FAILED" in str(error)
            raise FetchError("tls_verify" if verify else "tls", f"TLS to {self._base} fails") from None
        except requests.exceptions.Timeout:
            raise FetchError("timeout", f"GET {path}: no answer within {self._timeout:g} s") from None
        except requests.exceptions.ConnectionError as error:
            unresolved = "NameResolution" in repr(error) or "getaddrinfo" in repr(error)
            raise FetchError("dns" if unresolved else "connect", f"cannot connect to {self._base}") from None
        except (requests.exceptions.RequestException, OSError, ValueError) as error:
            raise FetchError("truncated", f"GET {path}: {type(error).__name__}") from None

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
    limit = rows[0].get("max_model_len") if rows else None
    return [row["id"] for row in rows], limit if isinstance(limit, int) and limit > 0 else None


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
    capacity = server.get("max_total_num_tokens")
    if not isinstance(capacity, int):
        gauge = _first_value(page, "max_total_num_tokens")
        capacity = int(gauge) if gauge else None
    memory = _first_value(page, "kv_cache_memory_usage_gb")  # its GB is 2**30
    model_path = info.get("model_path")
    if not models and isinstance(model_path, str):
        models = [model_path]
    limit = info.get("max_context_length") or server.get("context_length") or context
    return ServerFacts(
        models=tuple(models),
        engine="sglang",
        engine_version=str(server.get("version") or ""),
        context_tokens=limit if isinstance(limit, int) else context,
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
    capacity = known.get("kv_cache_size_tokens", "")
    if not capacity.isdigit() and known.get("num_gpu_blocks", "").isdigit() and known.get("block_size", "").isdigit():
        capacity = str(int(known["num_gpu_blocks"]) * int(known["block_size"]))
    return ServerFacts(
        models=tuple(models),
        engine="vllm",
        engine_version=version,
        context_tokens=context,
        kv_cache_capacity_tokens=int(capacity) if capacity.isdigit() else None,
        kv_cache_bytes=float(known["kv_cache_memory_bytes"]) if known.get("kv_cache_memory_bytes", "").isdigit() else None,
        conditions=conditions,
    )


def _first_value(page: str, name: str) -> float | None:
    """Value of the first sample of an SGLang gauge, under either spelling of its prefix."""
    match = re.search(rf"^sglang[:_]{name}(?:\{{[^\n]*\}})? ([0-9.eE+-]+)", page, re.MULTILINE)
    return float(match[1]) if match else None
