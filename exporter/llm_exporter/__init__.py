"""llm-exporter: says why an LLM inference server is slow.

Reads vLLM and SGLang servers, GPUs, the host and its own probes; gives one vocabulary of Prometheus metrics.
The flow is one direction, room by room: fetch (`sources`), normalise (`engines`), remember (`state`), derive (`signals`),
show (`expose`, `generate`, `report`). `docs/design.md` has the reasons.
"""

__version__ = "0.1.0"
