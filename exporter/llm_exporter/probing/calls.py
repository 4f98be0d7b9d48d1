"""What is sent: the body and headers of one probe for each endpoint, marked as ours wherever the engine can label traffic.

In: endpoint, model, prompt, limits. Out: a `ProbeCall` for the child process. Called by `probing/runner.py` and `probing/ladder.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llm_exporter import __version__
from llm_exporter.sources.probe import ProbeCall, TlsSettings

USER_AGENT = f"llm-exporter-probe/{__version__}"
CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
KNOWN_ENGINES = frozenset({"vllm", "sglang"})


def marks(engine: str) -> dict[str, str]:
    """Headers that tell our traffic apart.

    SGLang puts the pairs of `x-custom-labels` on its metrics, where `--tokenizer-metrics-allowed-custom-labels source` admits them.
    """
    labels = {"x-custom-labels": json.dumps({"source": "probe"})} if engine == "sglang" else {}
    return {"User-Agent": USER_AGENT, **labels}


def body_of(endpoint: str, *, model: str, prompt: str, max_tokens: int, temperature: float, engine: str) -> dict[str, Any]:
    """The JSON body. `ignore_eos`, an extension of both engines, keeps a short answer from cutting the measurement of gaps."""
    if endpoint.endswith(GENERATE):
        sampling = {"max_new_tokens": max_tokens, "temperature": temperature, "ignore_eos": True}
        return {"text": prompt, "sampling_params": sampling, "stream": True}
    body: dict[str, Any] = {"model": model}
    if endpoint.endswith("/chat/completions"):
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    body |= {"max_tokens": max_tokens, "temperature": temperature, "stream": True, "stream_options": {"include_usage": True}}
    if engine in KNOWN_ENGINES:
        body["ignore_eos"] = True
    return body


def call_of(
    url: str,
    endpoint: str,
    *,
    model: str,
    prompt: str,
    max_tokens: int,
    temperature: float = 0.0,
    engine: str = "",
    headers: Mapping[str, str] | None = None,
    tls: TlsSettings | None = None,
    timeout_seconds: float = 30.0,
) -> ProbeCall:
    """A call that is ready to be sent. The caller's headers go last, so that a gateway's own user agent rule can be met."""
    body = body_of(endpoint, model=model, prompt=prompt, max_tokens=max_tokens, temperature=temperature, engine=engine)
    return ProbeCall(
        url=url,
        endpoint=endpoint,
        body=json.dumps(body),
        headers={**marks(engine), **(headers or {})},
        timeout_seconds=timeout_seconds,
        tls=tls or TlsSettings(),
    )
