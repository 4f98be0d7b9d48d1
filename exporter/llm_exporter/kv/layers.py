"""What each layer of a model keeps, in order: from a list in its config, or from the rule that its architecture follows.

In: a `ModelConfig`. Out: one `Kind` a layer. Called by `shape.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from llm_exporter.errors import ConfigError
from llm_exporter.kv.numbers import MOST_LAYERS, Config, optional, shown, whole


class Kind(StrEnum):
    """What a layer keeps."""

    FULL = "full"  # keys and values of every token
    SLIDING = "sliding"  # of the last `window` tokens
    LATENT = "latent"  # MLA: one compressed vector per token, on every rank
    STATE = "state"  # a constant state per request (Mamba, linear attention, convolution): not counted
    NOTHING = "nothing"  # an MLP, or a layer that reads another's cache


# Architectures with plain attention in every layer and nothing else to know; a window applies to all layers where the config has one.
PLAIN = frozenset(
    """llama mistral mixtral qwen qwen2 qwen2_moe qwen3 qwen3_moe phi phi3 phimoe gemma starcoder2 stablelm internlm2 internlm3 baichuan
    gpt2 gpt_neox gptj gpt_bigcode bloom opt mpt dbrx falcon cohere olmo olmo2 olmoe granite granitemoe chatglm glm glm4 glm4_moe aria_text
    deepseek exaone solar nemotron minicpm seed_oss ernie4_5 ernie4_5_moe hunyuan_v1_dense hunyuan_v1_moe arctic grok-1 smollm3 apertus
    minimax_m2 bailing_moe dots1 xverse orion qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text
    qwen3_vl_text qwen3_vl_moe_text mistral3 pixtral""".split()  # noqa: SIM905
)
LATENT = frozenset({"deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "minicpm3", "longcat_flash", "glm_moe_dsa", "glm4_moe_lite"})
PATTERNED = frozenset(
    """gemma2 gemma3 gemma3_text gemma3n gemma3n_text cohere2 llama4 llama4_text gpt_oss exaone4 olmo3 mimo_v2_flash""".split()  # noqa: SIM905
)
HYBRID = frozenset(
    """jamba qwen3_next qwen3_5_text qwen3_5_moe_text nemotron_h bamba granitemoehybrid zamba2 recurrent_gemma falcon_h1 lfm2 lfm2_moe
    minimax minimax_text_01 minimax_m1 kimi_linear nemotron-nas deci""".split()  # noqa: SIM905
)
KNOWN = PLAIN | LATENT | PATTERNED | HYBRID

_WORDS: Mapping[str, Kind] = {
    "full_attention": Kind.FULL, "attention": Kind.FULL, "global_attention": Kind.FULL, "hybrid": Kind.FULL, "full": Kind.FULL,
    "indexed_attention": Kind.FULL,
    "sliding_attention": Kind.SLIDING, "chunked_attention": Kind.SLIDING, "sliding_window": Kind.SLIDING, "local_attention": Kind.SLIDING,
    "linear_attention": Kind.STATE, "mamba": Kind.STATE, "conv": Kind.STATE, "recurrent": Kind.STATE, "mamba2": Kind.STATE,
    "mlp": Kind.NOTHING, "moe": Kind.NOTHING,
}  # fmt: skip


def layer_kinds(name: str, text: Config, layers: int) -> list[Kind]:
    """What each layer keeps, in order."""
    full = Kind.LATENT if _is_latent(name, text) else Kind.FULL
    found = _listed(text) or _patterned(name, text, layers)
    if len(found) > MOST_LAYERS:
        raise ConfigError(f"the list of layers has {len(found)} entries (allowed: 1 to {MOST_LAYERS}): no model has it; not computed")
    kinds = [full if kind is Kind.FULL else kind for kind in found]
    if name == "longcat_flash":
        kinds = kinds * 2  # each layer holds two attentions
    shared = optional(text, "num_kv_shared_layers") or 0
    if shared:
        if shared >= len(kinds):
            raise ConfigError(f"num_kv_shared_layers {shared}: of {len(kinds)} layers at most {len(kinds) - 1} can share another's cache")
        kinds = [*kinds[: len(kinds) - shared], *[Kind.NOTHING] * shared]
    factor = optional(text, "cla_share_factor") if text.get("use_cla") else None
    if factor:
        kinds = [kind if place % factor == 0 else Kind.NOTHING for place, kind in enumerate(kinds)]
    return kinds


def _listed(text: Config) -> list[Kind] | None:
    """From a list in the config that names each layer."""
    for key in ("layer_types", "layers_block_type"):
        rows = text.get(key)
        if isinstance(rows, list) and rows:
            unknown = [row for row in rows if row not in _WORDS]
            if unknown:
                raise ConfigError(f"{key} names {shown(unknown[0])}, a kind of layer that is not known here; not computed")
            return [_WORDS[row] for row in rows]
    letters = text.get("hybrid_override_pattern")
    if isinstance(letters, str):
        return [{"*": Kind.FULL, "M": Kind.STATE}.get(letter, Kind.NOTHING) for letter in letters if letter != "|"]
    rows = text.get("attn_type_list")
    if isinstance(rows, list):
        return [Kind.FULL if row == 1 else Kind.STATE for row in rows]
    rows = text.get("hybrid_layer_pattern")
    if isinstance(rows, list):
        return [Kind.SLIDING if row == 1 else Kind.FULL for row in rows]
    linear = text.get("linear_attn_config")
    if isinstance(linear, Mapping) and isinstance(linear.get("full_attn_layers"), list):  # counted from 1
        chosen = set(linear["full_attn_layers"])
        return [Kind.FULL if place in chosen else Kind.STATE for place in range(1, whole(text, "num_hidden_layers") + 1)]
    rows = text.get("block_configs")
    if isinstance(rows, list):
        return [Kind.NOTHING if row["attention"].get("no_op") or row["attention"].get("replace_with_linear") else Kind.FULL for row in rows]
    return None


def _patterned(name: str, text: Config, layers: int) -> list[Kind]:
    """From a rule: every n-th layer is another one."""
    places = range(layers)

    def full_where(test: Callable[[int], bool], other: Kind) -> list[Kind]:
        return [Kind.FULL if test(place) else other for place in places]

    if name == "jamba":
        period, offset = whole(text, "attn_layer_period"), optional(text, "attn_layer_offset") or 0
        return full_where(lambda place: place % period == offset, Kind.STATE)
    if isinstance(text.get("attn_layer_indices"), list):
        chosen = set(text["attn_layer_indices"])
        return full_where(lambda place: place in chosen, Kind.STATE)
    if "full_attention_interval" in text:
        period = whole(text, "full_attention_interval")
        return full_where(lambda place: (place + 1) % period == 0, Kind.STATE)
    if isinstance(text.get("block_types"), list) and text["block_types"]:  # RecurrentGemma: local attention among recurrent blocks
        rows = text["block_types"]
        return [Kind.SLIDING if rows[place % len(rows)] == "attention" else Kind.STATE for place in places]
    if name in PATTERNED and window_of(text):
        pattern = text.get("sliding_window_pattern") or text.get("_sliding_window_pattern")
        if isinstance(pattern, str) and pattern:  # EXAONE 4: "LLLG"
            return [Kind.SLIDING if pattern[place % len(pattern)] == "L" else Kind.FULL for place in places]
        usual = {"gemma2": 2, "gpt_oss": 2, "gemma3n_text": 5, "gemma3": 6, "gemma3_text": 6}.get(name, 4)
        period = optional(text, "sliding_window_pattern", "_sliding_window_pattern") or usual
        return full_where(lambda place: (place + 1) % period == 0, Kind.SLIDING)
    if not window_of(text) or text.get("use_sliding_window") is False or name in HYBRID:
        return [Kind.FULL for _ in places]
    if text.get("use_sliding_window") is True:  # Qwen 2: the first layers stay full
        first = optional(text, "max_window_layers") or 0
        return [Kind.FULL if place < first else Kind.SLIDING for place in places]
    return [Kind.SLIDING for _ in places]


def _is_latent(name: str, text: Config) -> bool:
    return name in LATENT or None not in (optional(text, "kv_lora_rank"), optional(text, "qk_rope_head_dim"))


def window_of(text: Config) -> int | None:
    """Tokens that a sliding or chunked layer keeps; None where the config has no window."""
    return optional(text, "sliding_window", "sliding_window_size", "attention_chunk_size", "attention_window_size")
