"""The dtype that a server computes in, and the bytes of one number in its KV cache.

In: what the config says, what `--kv-dtype` says. Out: a dtype, bytes, and a sentence on what was assumed. Called by `cli/kv.py`.

What `auto` means was read in the engines, for a GPU of compute capability 8.0 or later:

- vLLM 0.32.0, config/model.py `_resolve_auto_dtype`: float32, and a config without a dtype, become bfloat16 (float16 on older GPUs,
  which Gemma 2 and 3 and GLM 4 refuse); float16 and bfloat16 stay.
- SGLang 0.5.23, srt/configs/model_config.py `_get_and_verify_dtype`: float32, and a config without a dtype, become float16, for
  Gemma bfloat16; float16 and bfloat16 stay.
- The cache follows the dtype served, unless the checkpoint asks for a quantised cache: vLLM, utils/torch_utils.py
  `get_kv_cache_quant_algo_string`.

So no model is served in 4 bytes unless somebody asks for it with `--dtype float32`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_exporter.errors import UsageError
from llm_exporter.kv.numbers import optional

# Bytes per number. Scales of quantised caches are not counted: they are below 1 %.
KV_DTYPES: Mapping[str, float] = {
    "fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "half": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
    "int8": 1, "fp4": 0.5, "nvfp4": 0.5, "int4": 0.5,
}  # fmt: skip
_SINGLE = ("", "float32", "float", "fp32")
_QUANTISED = {"fp8": "fp8", "fp8_e4m3": "fp8", "nvfp4": "nvfp4"}


@dataclass(frozen=True, slots=True)
class Served:
    """What `auto` makes of a checkpoint.

    Attributes:
        dtype: that the engine computes in.
        element_bytes: of it.
        assumption: a sentence where the config does not simply say so; empty where it does.
    """

    dtype: str
    element_bytes: float
    assumption: str = ""


def served_dtype(checkpoint_dtype: str, architecture: str) -> Served:
    """The dtype that vLLM and SGLang serve with `--dtype auto`.

    Args:
        checkpoint_dtype: the config's; empty where it names none.
        architecture: its model_type.
    """
    if checkpoint_dtype not in _SINGLE:
        size = KV_DTYPES.get(checkpoint_dtype, 2)
        unknown = "" if checkpoint_dtype in KV_DTYPES else f"the config's dtype {checkpoint_dtype} is not known here: 2 bytes"
        return Served(checkpoint_dtype, float(size), unknown)
    wide = "with --dtype float32 there are 4: give --kv-dtype fp32 and --weights"
    if not checkpoint_dtype:
        return Served("bfloat16", 2.0, f"the config names no dtype; vLLM's and SGLang's `auto` then serve 16 bits: 2 bytes; {wide}")
    if architecture.startswith("gemma"):
        engines = "vLLM's and SGLang's `auto` serve it as bfloat16"
    else:
        engines = "vLLM's `auto` serves it as bfloat16, SGLang's as float16"
    return Served("bfloat16", 2.0, f"the config says float32; {engines}: 2 bytes; {wide}")


def element_bytes(wanted: str, served: Served, quantization: Mapping[str, Any] | None = None) -> tuple[float, str]:
    """(bytes, how it was found) for a `--kv-dtype`; `auto` follows the dtype served.

    Raises:
        UsageError: an unknown dtype.
        ConfigError: the checkpoint asks for a number of bits that is none.
    """
    name = wanted.lower()
    if name != "auto":
        if name not in KV_DTYPES:
            raise UsageError(f"--kv-dtype {wanted!r} is not known; there are auto, {', '.join(KV_DTYPES)}")
        return float(KV_DTYPES[name]), name
    asked = _asked_by_checkpoint(quantization or {})
    if asked is not None:
        return float(KV_DTYPES[asked]), f"{asked}, as the checkpoint asks"
    return served.element_bytes, f"{served.dtype}, as the model is served"


def _asked_by_checkpoint(quantization: Mapping[str, Any]) -> str | None:
    """The dtype of the cache that a quantised checkpoint carries scales for: vLLM takes it where nobody says otherwise."""
    inner = quantization.get("quantization")
    for part in (inner if isinstance(inner, Mapping) else {}, quantization):
        scheme = part.get("kv_cache_scheme") or part.get("kv_cache_quant_algo")
        if isinstance(scheme, str):
            return _QUANTISED.get(scheme.lower())
        if isinstance(scheme, Mapping) and scheme.get("type") == "float":
            return {8: "fp8", 4: "nvfp4"}.get(optional(scheme, "num_bits") or 0)
    return None
