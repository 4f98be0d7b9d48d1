"""Which layers of a model keep keys and values, and how many bytes per token each needs: read from its Hugging Face config.json.

In: the parsed config. Out: a `Shape`: groups of like layers, what is not counted, and what had to be assumed. Called by `cli/kv.py`.
Knows MHA, GQA, MQA, MLA, sliding-window and chunked layers with their patterns, and hybrids whose other layers keep a constant state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from llm_exporter.errors import ConfigError

Config = Mapping[str, Any]


class Kind(StrEnum):
    """What a layer keeps."""

    FULL = "full"  # keys and values of every token
    SLIDING = "sliding"  # of the last `window` tokens
    LATENT = "latent"  # MLA: one compressed vector per token, on every rank
    STATE = "state"  # a constant state per request (Mamba, linear attention, convolution): not counted
    NOTHING = "nothing"  # an MLP, or a layer that reads another's cache


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that are alike.

    Attributes:
        kv_heads: heads with keys and values; 1 for MLA.
        elements_per_head: numbers per token and head, key and value together.
        window: tokens kept, None for all.
    """

    kind: Kind
    layers: int
    kv_heads: int
    elements_per_head: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """All that the config says about the cache.

    Attributes:
        attention: MHA, GQA, MQA or MLA.
        dtype: the model's own, for `--kv-dtype auto`; empty where not said.
        known: the architecture is one whose rules are written down here; otherwise plain attention was assumed.
        notes: sentences for people: what is not counted, what was assumed.
    """

    architecture: str
    attention: str
    groups: tuple[Group, ...]
    layers: int
    dtype: str
    known: bool
    context_tokens: int | None = None
    notes: tuple[str, ...] = field(default=())


# Architectures with plain attention in every layer and nothing else to know; a window applies to all layers where the config has one.
_PLAIN = frozenset(
    """llama mistral mixtral qwen qwen2 qwen2_moe qwen3 qwen3_moe phi phi3 phimoe gemma starcoder2 stablelm internlm2 internlm3 baichuan
    gpt2 gpt_neox gptj gpt_bigcode bloom opt mpt dbrx falcon cohere olmo olmo2 olmoe granite granitemoe chatglm glm glm4 glm4_moe aria_text
    deepseek exaone solar nemotron minicpm seed_oss ernie4_5 ernie4_5_moe hunyuan_v1_dense hunyuan_v1_moe arctic grok-1 smollm3 apertus
    minimax_m2 bailing_moe dots1 xverse orion qwen2_vl_text qwen2_5_vl_text qwen3_vl_text qwen3_vl_moe_text mistral3 pixtral""".split()  # noqa: SIM905
)
_LATENT = frozenset({"deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "minicpm3", "longcat_flash", "glm_moe_dsa", "glm4_moe_lite"})
_PATTERNED = frozenset(
    """gemma2 gemma3 gemma3_text gemma3n gemma3n_text cohere2 llama4 llama4_text gpt_oss exaone4 olmo3 mimo_v2_flash""".split()  # noqa: SIM905
)
_HYBRID = frozenset(
    """jamba qwen3_next qwen3_5_text qwen3_5_moe_text nemotron_h bamba granitemoehybrid zamba2 recurrent_gemma falcon_h1 lfm2 lfm2_moe
    minimax minimax_text_01 minimax_m1 kimi_linear nemotron-nas deci""".split()  # noqa: SIM905
)
# What transformers fills in where a config leaves it out: Gemma 3 ships its text_config almost empty.
_DEFAULTS: Mapping[str, Config] = {
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "num_hidden_layers": 26, "sliding_window": 4096},
    "gemma3n_text": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "num_hidden_layers": 35, "sliding_window": 512},
    "gemma2": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
    "gemma": {"head_dim": 256},
    "qwen3_next": {"full_attention_interval": 4},
    "llama4_text": {"attention_chunk_size": 8192},
    "jamba": {"attn_layer_period": 8, "attn_layer_offset": 4},
}
_STATELESS = ("mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv5", "rwkv6", "rwkv7")
_ENCODERS = ("t5", "mt5", "bart", "whisper", "bert", "roberta", "mllama", "mbart", "pegasus")
# Names of keys that hint at a cache of another form; with them an unknown architecture is not guessed at.
_HINTS = ("mamba", "ssm", "linear_attn", "linear_attention", "lora_rank", "recurrent", "rwkv", "conv_kernel", "layer_types", "compress")

_WORDS: Mapping[str, Kind] = {
    "full_attention": Kind.FULL, "attention": Kind.FULL, "global_attention": Kind.FULL, "hybrid": Kind.FULL, "full": Kind.FULL,
    "sliding_attention": Kind.SLIDING, "chunked_attention": Kind.SLIDING, "sliding_window": Kind.SLIDING, "local_attention": Kind.SLIDING,
    "linear_attention": Kind.STATE, "mamba": Kind.STATE, "conv": Kind.STATE, "recurrent": Kind.STATE, "mamba2": Kind.STATE,
    "mlp": Kind.NOTHING, "moe": Kind.NOTHING,
}  # fmt: skip


def read_shape(config: Config) -> Shape:
    """Reads a config.

    Raises:
        ConfigError: no decoder with a cache whose form is known.
    """
    text = _text_part(config)
    name = str(text.get("model_type") or config.get("model_type") or "").lower()
    if name in _ENCODERS or text.get("is_encoder_decoder") is True:
        raise ConfigError(f"model_type {name!r}: an encoder, or an encoder with a decoder, keeps another kind of cache; not computed")
    if name in _STATELESS:
        raise ConfigError(f"model_type {name!r} has no attention: it keeps a constant state per request and no KV cache")
    known = name in _PLAIN | _LATENT | _PATTERNED | _HYBRID
    if not known:
        _refuse_hints(name, text)
    text = {**_DEFAULTS.get(name, {}), **{key: value for key, value in text.items() if value is not None}}
    layers = _whole(text, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    kinds = _kinds(name, text, layers)
    groups = _groups(text, kinds)
    notes = _notes(name, text, kinds, known=known)
    return Shape(
        architecture=name or "unknown",
        attention=_attention(text, groups),
        groups=groups,
        layers=layers,
        dtype=_dtype(config, text),
        known=known,
        context_tokens=_optional(text, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
        notes=tuple(notes),
    )


def _text_part(config: Config) -> Config:
    """The language model's part of a config that also holds vision or audio."""
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        part = config.get(key)
        if isinstance(part, Mapping):
            return _text_part(part)
    return config


def _refuse_hints(name: str, text: Config) -> None:
    hints = [key for key, value in text.items() if value is not None and any(hint in key.lower() for hint in _HINTS)]
    if hints:
        raise ConfigError(
            f"model_type {name!r} is not known here, and its key {hints[0]!r} says that its cache is not plain attention; not computed"
        )


def _kinds(name: str, text: Config, layers: int) -> list[Kind]:
    """What each layer keeps, in order."""
    full = Kind.LATENT if _is_latent(name, text) else Kind.FULL
    found = _listed(text) or _patterned(name, text, layers)
    kinds = [full if kind is Kind.FULL else kind for kind in found]
    if name == "longcat_flash":
        kinds = kinds * 2  # each layer holds two attentions
    shared = _optional(text, "num_kv_shared_layers") or 0
    if shared:
        kinds = [*kinds[: len(kinds) - shared], *[Kind.NOTHING] * shared]
    factor = _optional(text, "cla_share_factor") if text.get("use_cla") else None
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
                raise ConfigError(f"{key} names {unknown[0]!r}, a kind of layer that is not known here; not computed")
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
        return [Kind.FULL if place in chosen else Kind.STATE for place in range(1, _whole(text, "num_hidden_layers") + 1)]
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
        period, offset = _whole(text, "attn_layer_period"), _whole(text, "attn_layer_offset")
        return full_where(lambda place: place % period == offset, Kind.STATE)
    if isinstance(text.get("attn_layer_indices"), list):
        return full_where(lambda place: place in text["attn_layer_indices"], Kind.STATE)
    if "full_attention_interval" in text:
        period = _whole(text, "full_attention_interval")
        return full_where(lambda place: (place + 1) % period == 0, Kind.STATE)
    if isinstance(text.get("block_types"), list):  # RecurrentGemma: local attention among recurrent blocks
        rows = text["block_types"]
        return [Kind.SLIDING if rows[place % len(rows)] == "attention" else Kind.STATE for place in places]
    if name in _PATTERNED and _window(text):
        pattern = text.get("sliding_window_pattern") or text.get("_sliding_window_pattern")
        if isinstance(pattern, str):  # EXAONE 4: "LLLG"
            return [Kind.SLIDING if pattern[place % len(pattern)] == "L" else Kind.FULL for place in places]
        period = pattern if isinstance(pattern, int) else {"gemma2": 2, "gpt_oss": 2, "gemma3n_text": 5}.get(name, 4)
        if name in ("gemma3", "gemma3_text") and not isinstance(pattern, int):
            period = 6
        return full_where(lambda place: (place + 1) % period == 0, Kind.SLIDING)
    if not _window(text) or text.get("use_sliding_window") is False or name in _HYBRID:
        return [Kind.FULL for _ in places]
    if text.get("use_sliding_window") is True:  # Qwen 2: the first layers stay full
        first = _optional(text, "max_window_layers") or 0
        return [Kind.FULL if place < first else Kind.SLIDING for place in places]
    return [Kind.SLIDING for _ in places]


def _groups(text: Config, kinds: list[Kind]) -> tuple[Group, ...]:
    heads = _heads(text)
    window = _window(text)
    found: Counter[Group] = Counter()
    for place, kind in enumerate(kinds):
        if kind is Kind.LATENT:
            rank, rope = _whole(text, "kv_lora_rank"), _whole(text, "qk_rope_head_dim")
            found[Group(kind, 0, 1, rank + rope)] += 1
        elif kind in (Kind.FULL, Kind.SLIDING):
            kv_heads = _kv_heads(text, heads, place)
            key, value = _head_dims(text, heads)
            if kind is Kind.SLIDING and "swa_num_key_value_heads" in text:
                kv_heads = _whole(text, "swa_num_key_value_heads")
                key = _optional(text, "swa_head_dim") or key
                value = _optional(text, "swa_v_head_dim") or value
            if kind is Kind.FULL and "global_head_dim" in text:
                key = value = _whole(text, "global_head_dim")
                kv_heads = _optional(text, "num_global_key_value_heads") or kv_heads
            found[Group(kind, 0, kv_heads, key + value, window if kind is Kind.SLIDING else None)] += 1
        else:
            found[Group(kind, 0, 0, 0)] += 1
    return tuple(Group(row.kind, count, row.kv_heads, row.elements_per_head, row.window) for row, count in found.items())


def _heads(text: Config) -> int:
    return _whole(text, "num_attention_heads", "n_head", "n_heads", "num_heads")


def _kv_heads(text: Config, heads: int, place: int) -> int:
    """Heads with keys and values of one layer."""
    rows = text.get("block_configs")
    if isinstance(rows, list):
        group = rows[place]["attention"].get("n_heads_in_group")
        return heads // int(group) if group else heads
    nested = text.get("attn_config")
    if isinstance(nested, Mapping) and isinstance(nested.get("kv_n_heads"), int):
        return int(nested["kv_n_heads"])
    for key in ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_query_groups"):
        value = text.get(key)
        if isinstance(value, list):
            return int(value[place])
        # Falcon's old decoder writes its heads here and has one head of keys all the same
        if isinstance(value, int) and not (text.get("multi_query") is True and text.get("new_decoder_architecture") is not True):
            return value
    if text.get("multi_query_attention") is True:
        return _whole(text, "multi_query_group_num")
    return 1 if text.get("multi_query") is True else heads


def _head_dims(text: Config, heads: int) -> tuple[int, int]:
    """(numbers per key, numbers per value)."""
    key = _optional(text, "head_dim", "attention_head_dim", "kv_channels")
    if key is None:
        hidden = _whole(text, "hidden_size", "n_embd", "d_model")
        if hidden % heads:
            raise ConfigError(f"hidden_size {hidden} is no multiple of {heads} heads and there is no head_dim; not computed")
        key = hidden // heads
    return key, _optional(text, "v_head_dim") or key


def _is_latent(name: str, text: Config) -> bool:
    return name in _LATENT or (isinstance(text.get("kv_lora_rank"), int) and isinstance(text.get("qk_rope_head_dim"), int))


def _window(text: Config) -> int | None:
    return _optional(text, "sliding_window", "sliding_window_size", "attention_chunk_size", "attention_window_size")


def _attention(text: Config, groups: tuple[Group, ...]) -> str:
    if any(group.kind is Kind.LATENT for group in groups):
        return "MLA"
    counts = {group.kv_heads for group in groups if group.kind in (Kind.FULL, Kind.SLIDING)}
    if counts == {1}:
        return "MQA"
    return "MHA" if counts == {_heads(text)} else "GQA"


def _dtype(config: Config, text: Config) -> str:
    for part in (text, config):
        value = part.get("torch_dtype") or part.get("dtype")
        if isinstance(value, str):
            return value.removeprefix("torch.")
    return ""


def _notes(name: str, text: Config, kinds: list[Kind], *, known: bool) -> list[str]:
    notes = []
    counts = Counter(kinds)
    if not known:
        notes.append(f"architecture {name or 'unknown'!r} is not known here: computed as plain attention in all layers; check it")
    if counts[Kind.STATE]:
        notes.append(f"{counts[Kind.STATE]} layers keep a constant state per request (Mamba, linear attention or convolution): not counted")
    if name == "falcon_h1":
        notes.append("every layer also keeps a constant Mamba state per request: not counted")
    if counts[Kind.NOTHING]:
        notes.append(f"{counts[Kind.NOTHING]} layers keep nothing of their own (MLP only, or they share another layer's cache)")
    if "index_head_dim" in text:
        notes.append("the index of the sparse attention (one key of each token and layer) is not counted")
    if _optional(text, "num_nextn_predict_layers"):
        notes.append("the layer for multi-token prediction is not counted; it has a cache only where speculative decoding uses it")
    return notes


def _optional(text: Config, *names: str) -> int | None:
    for name in names:
        value = text.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _whole(text: Config, *names: str) -> int:
    for name in names:
        value = text.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    raise ConfigError(f"the config has no {names[0]}: is it the config.json of a language model?")
