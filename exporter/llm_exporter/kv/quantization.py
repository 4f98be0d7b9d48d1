"""Bits that a quantised checkpoint spends on a parameter, and which parts it leaves alone.

In: `quantization_config` of a config.json. Out: a `Quantization`, or an error that names the method. Called by `weights.py`.
The layouts are those of the formats: a group of weights shares a scale of 16 bits (GPTQ and AWQ add a zero point of the weights' own
size), MXFP4 shares one byte among 32 weights, NVFP4 one among 16, block-wise FP8 four bytes among a block (below 0.1 %).
Embeddings and the output table are in the model's dtype in all of them unless the file says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llm_exporter.errors import ConfigError
from llm_exporter.kv.numbers import Config, optional


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the linear layers are stored.

    Attributes:
        bits: of one weight, its share of scales included.
        attention: False where attention is left in the model's dtype.
        mlp: the same of MLPs that are no routed experts.
        label: for people.
    """

    bits: float
    attention: bool
    mlp: bool
    label: str


def read_quantization(config: Config) -> Quantization:
    """Reads.

    Raises:
        ConfigError: a method whose layout is not known here.
    """
    method = _word(config, "quant_method")
    if not method and config.get("quant_algo"):
        method = "modelopt"
    bits, label = _bits(method, config)
    left = [entry for key in ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers") for entry in _entries(config, key)]
    attention = not any("*" in entry and ("self_attn" in entry or "attention" in entry) for entry in left)
    # MXFP4 is a format of experts: what else a model has stays as it is
    return Quantization(bits, attention and method != "mxfp4", method != "mxfp4", label)


def _bits(method: str, config: Config) -> tuple[float, str]:
    if method == "mxfp4":
        return 4 + 8 / 32, "mxfp4"
    if method in ("fp8", "fbgemm_fp8"):
        return 8.0, "fp8"
    if method in ("gptq", "awq", "gptq_marlin", "awq_marlin", "auto-round", "autoround"):
        bits = optional(config, "bits", "w_bit")
        if bits is not None:
            return _grouped(bits, optional(config, "group_size", "q_group_size"), zero_point=True), f"{method}, {bits} bits"
    if method == "bitsandbytes":
        return (4.5, "bitsandbytes, 4 bits") if config.get("load_in_4bit") else (8.0, "bitsandbytes, 8 bits")
    if method == "compressed-tensors":
        found = _compressed(config)
        if found is not None:
            return found
    if method.startswith("modelopt"):
        inner = config.get("quantization")
        algorithm = _word(config, "quant_algo") or _word(inner if isinstance(inner, Mapping) else {}, "quant_algo")
        if "fp8" in algorithm:
            return 8.0, "fp8"
        if "fp4" in algorithm:
            return 4 + 8 / 16, "nvfp4"
    raise ConfigError(f"the layout of quant_method {method or 'without a name'!r} is not known here")


def _compressed(config: Config) -> tuple[float, str] | None:
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        bits = optional(weights, "num_bits") if isinstance(weights, Mapping) else None
        if isinstance(weights, Mapping) and bits is not None:
            if bits == 4 and weights.get("type") == "float":
                return 4 + 8 / 16, "compressed-tensors, nvfp4"
            return _grouped(bits, optional(weights, "group_size"), zero_point=False), f"compressed-tensors, {bits} bits"
    return None


def _grouped(bits: int, group: int | None, *, zero_point: bool) -> float:
    """Bits of a weight and its share of what its group stores. No group size, or −1, is a scale for a whole column: nothing."""
    if group is None:
        return float(bits)
    return bits + (16 + (bits if zero_point else 0)) / group


def _entries(config: Config, key: str) -> list[str]:
    value = config.get(key)
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []


def _word(config: Config, key: str) -> str:
    """In lower case; empty where there is none."""
    value = config.get(key)
    return value.lower() if isinstance(value, str) else ""
