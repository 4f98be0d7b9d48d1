"""The one door for numbers of a config.json: whole, finite, and no larger than a model can have.

In: keys of a parsed config. Out: a number, or a `ConfigError` that names key, value and range. Called by all that read a config.
So arithmetic never meets a number that overflows, runs for hours or fills the memory. Every key that is read stands in `LIMITS`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from llm_exporter.errors import ConfigError

Config = Mapping[str, Any]

CONTEXT_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_sequence_length", "max_seq_length",
)  # fmt: skip
# The largest that each key may hold: a hundred times and more what any model has, and few enough layers to count one by one.
_LAYERS = """num_hidden_layers n_layer n_layers num_layers num_kv_shared_layers cla_share_factor attn_layer_period attn_layer_offset
    full_attention_interval sliding_window_pattern _sliding_window_pattern max_window_layers first_k_dense_replace moe_layer_start_index
    moe_layer_freq decoder_sparse_step interleave_moe_layer_step moe_layer_interval num_nextn_predict_layers"""
_HEADS = """num_attention_heads n_head n_heads num_heads num_key_value_heads num_kv_heads n_head_kv num_query_groups
    multi_query_group_num swa_num_key_value_heads num_global_key_value_heads kv_n_heads n_heads_in_group linear_num_key_heads
    linear_num_value_heads"""
_EXPERTS = """n_routed_experts num_local_experts num_experts moe_num_experts n_shared_experts num_shared_experts
    moe_num_shared_experts"""
_WIDTHS = """hidden_size n_embd d_model n_embed head_dim attention_head_dim kv_channels v_head_dim swa_head_dim swa_v_head_dim
    global_head_dim kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim linear_key_head_dim linear_value_head_dim
    intermediate_size ffn_hidden_size ffn_dim n_inner moe_intermediate_size expert_ffn_hidden_size shared_expert_intermediate_size
    intermediate_size_mlp group_size q_group_size"""
_WINDOWS = "sliding_window sliding_window_size attention_chunk_size attention_window_size"
MOST_LAYERS = 10**4
LIMITS: Mapping[str, int] = {
    **dict.fromkeys(_LAYERS.split(), MOST_LAYERS),
    **dict.fromkeys(_HEADS.split(), 10**5),
    **dict.fromkeys(_EXPERTS.split(), 10**5),
    **dict.fromkeys(_WIDTHS.split(), 10**7),
    **dict.fromkeys(("vocab_size", "padded_vocab_size"), 10**8),
    **dict.fromkeys((*CONTEXT_KEYS, *_WINDOWS.split()), 10**9),
    **dict.fromkeys(("bits", "w_bit", "num_bits"), 64),
    "factor": 10**4,
}
_NO_LIMIT = int(1e30)  # transformers writes this for a length without a limit
_SHOWN = 40  # characters of a value in a message


def check_numbers(config: Config) -> None:
    """Looks at each number under a key of `LIMITS`, however deep it stands, so that the answer does not depend on which flags read it.

    Raises:
        ConfigError: one is not finite, or larger than any model has.
    """
    for key, value in _numbers(config):
        if key in LIMITS and not abs(value) <= LIMITS[key] and not _is_none(key, value):  # `not <=`: NaN is no number either
            raise ConfigError(f"{key} {shown(value)} is outside 1 to {LIMITS[key]}: no model has it")


def _numbers(config: Config) -> Iterator[tuple[str, int | float]]:
    """(key, number) of the whole file; a number in a list has the list's key. Without recursion: depth is the file's choice."""
    rest: list[tuple[str, Any]] = list(config.items())
    while rest:
        key, value = rest.pop()
        if isinstance(value, Mapping):
            rest += value.items()
        elif isinstance(value, list):
            rest += ((key, row) for row in value)
        elif isinstance(value, int | float):
            yield key, value


def optional(config: Config, *names: str) -> int | None:
    """The first of these keys that holds a whole number above 0. Null, false, 0 and −1 are how configs say that there is none.

    Raises:
        ConfigError: one before it holds something else, or the number is larger than any model has.
    """
    for name in names:
        value = config.get(name)
        if not _is_none(name, value):
            return number(name, value)
    return None


def _is_none(name: str, value: Any) -> bool:
    """Does the config say that there is none?"""
    if value is None or value is False:
        return True
    return isinstance(value, int | float) and (value in (0, -1) or (name in CONTEXT_KEYS and value == _NO_LIMIT))


def whole(config: Config, *names: str) -> int:
    """The first of these keys that holds a whole number above 0.

    Raises:
        ConfigError: none does, or one holds something else.
    """
    value = optional(config, *names)
    if value is None:
        given = next((name for name in names if config.get(name) is not None), None)
        if given is not None:
            return number(given, config[given])
        raise ConfigError(f"the config has no {names[0]}: is it the config.json of a language model?")
    return value


def number(name: str, value: Any) -> int:
    """A whole number from 1 to the limit of this key; 32.0 is one too.

    Raises:
        ConfigError: it is none.
    """
    most = LIMITS[name]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ConfigError(f"{name} {shown(value)} is no whole number above 0 (allowed: 1 to {most})")
    if value > most:
        raise ConfigError(f"{name} {shown(value)} is outside 1 to {most}: no model has it")
    return value


def fraction(config: Config, name: str) -> float | None:
    """A number from 0 to the limit of this key, whole or not; None where it is not there.

    Raises:
        ConfigError: it is none.
    """
    value = config.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= LIMITS[name]:
        raise ConfigError(f"{name} {shown(value)} is no number from 0 to {LIMITS[name]}")
    return float(value)


def shown(value: Any) -> str:
    """A value for a message: short, whatever it is."""
    if isinstance(value, list | Mapping):
        return "[…]" if isinstance(value, list) else "{…}"
    if isinstance(value, float) and math.isinf(value):
        return "(infinite, or of too many digits)"
    if isinstance(value, int) and value.bit_length() > 4 * _SHOWN:
        return f"(of about {value.bit_length() * math.log10(2):.0f} digits)"
    text = repr(value if not isinstance(value, str) else value[:_SHOWN])
    return f"{text}…" if isinstance(value, str) and len(value) > _SHOWN else text
