"""Which layers of a model keep keys and values, and how many bytes per token each needs: read from its Hugging Face config.json.

In: the parsed config. Out: a `Shape`: groups of like layers, what is not counted, and what had to be assumed. Called by `cli/kv.py`.
Knows MHA, GQA, MQA, MLA, sliding-window and chunked layers with their patterns, and hybrids whose other layers keep a constant state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_exporter.errors import ConfigError
from llm_exporter.kv.layers import KNOWN, Kind, layer_kinds, window_of
from llm_exporter.kv.modelconfig import ModelConfig, read_config
from llm_exporter.kv.numbers import CONTEXT_KEYS, Config, number, optional, whole


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
        heads: that ask; each GPU of a tensor-parallel group takes an equal share of them.
        dtype: of the checkpoint; empty where not said.
        known: the architecture is one whose rules are written down here; otherwise plain attention was assumed.
        context_tokens: the longest that the model allows, None where it is not known; `context_source` says where it is from.
        notes: sentences for people: what is not counted, what was assumed.
    """

    architecture: str
    attention: str
    groups: tuple[Group, ...]
    layers: int
    heads: int
    dtype: str
    known: bool
    context_tokens: int | None = None
    context_source: str = ""
    notes: tuple[str, ...] = field(default=())


_STATELESS = ("mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv5", "rwkv6", "rwkv7")
_ENCODERS = ("t5", "mt5", "bart", "whisper", "bert", "roberta", "mllama", "mbart", "pegasus")
# Names of keys that hint at a cache of another form; with them an unknown architecture is not guessed at.
_HINTS = ("mamba", "ssm", "linear_attn", "linear_attention", "lora_rank", "recurrent", "rwkv", "conv_kernel", "layer_types", "compress")


def read_shape(config: Config) -> Shape:
    """Reads a parsed config.json, as `shape_of`."""
    return shape_of(read_config(config))


def shape_of(model: ModelConfig) -> Shape:
    """What the model caches.

    Raises:
        ConfigError: no decoder with a cache whose form is known.
    """
    name, text = model.name, model.text
    if name in _ENCODERS or text.get("is_encoder_decoder") is True:
        raise ConfigError(f"model_type {name!r}: an encoder, or an encoder with a decoder, keeps another kind of cache; not computed")
    if name in _STATELESS:
        raise ConfigError(f"model_type {name!r} has no attention: it keeps a constant state per request and no KV cache")
    known = name in KNOWN
    if not known:
        _refuse_hints(name, text)
    layers = model.whole("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    try:
        kinds = layer_kinds(name, text, layers)
        groups = _groups(text, kinds)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:  # a list that is too short, a number for a list, …
        raise ConfigError(f"a key of the config has another form than in other models of type {name!r}: {error!r}; not computed") from None
    if not any(group.kv_heads * group.elements_per_head for group in groups):
        raise ConfigError(f"model_type {name!r}: no layer keeps keys and values; there is no KV cache to compute")
    limit = model.context_limit()
    return Shape(
        architecture=name or "unknown",
        attention=_attention(text, groups),
        groups=groups,
        layers=layers,
        heads=_heads(text),
        dtype=model.dtype,
        known=known,
        context_tokens=limit[0] if limit else None,
        context_source=limit[1] if limit else "",
        notes=tuple(_notes(model, kinds, known=known)),
    )


def _refuse_hints(name: str, text: Config) -> None:
    hints = [key for key, value in text.items() if value is not None and any(hint in key.lower() for hint in _HINTS)]
    if hints:
        raise ConfigError(
            f"model_type {name!r} is not known here, and its key {hints[0]!r} says that its cache is not plain attention; not computed"
        )


def _groups(text: Config, kinds: list[Kind]) -> tuple[Group, ...]:
    heads = _heads(text)
    window = window_of(text)
    found: Counter[Group] = Counter()
    for place, kind in enumerate(kinds):
        if kind is Kind.LATENT:
            rank, rope = whole(text, "kv_lora_rank"), whole(text, "qk_rope_head_dim")
            found[Group(kind, 0, 1, rank + rope)] += 1
        elif kind in (Kind.FULL, Kind.SLIDING):
            kv_heads = _kv_heads(text, heads, place)
            key, value = _head_dims(text, heads)
            if kind is Kind.SLIDING and "swa_num_key_value_heads" in text:
                kv_heads = whole(text, "swa_num_key_value_heads")
                key = optional(text, "swa_head_dim") or key
                value = optional(text, "swa_v_head_dim") or value
            if kind is Kind.FULL and "global_head_dim" in text:
                key = value = whole(text, "global_head_dim")
                kv_heads = optional(text, "num_global_key_value_heads") or kv_heads
            found[Group(kind, 0, kv_heads, key + value, window if kind is Kind.SLIDING else None)] += 1
        else:
            found[Group(kind, 0, 0, 0)] += 1
    return tuple(Group(row.kind, count, row.kv_heads, row.elements_per_head, row.window) for row, count in found.items())


def _heads(text: Config) -> int:
    return whole(text, "num_attention_heads", "n_head", "n_heads", "num_heads")


def _kv_heads(text: Config, heads: int, place: int) -> int:
    """Heads with keys and values of one layer."""
    rows = text.get("block_configs")
    if isinstance(rows, list):
        group = optional(rows[place]["attention"], "n_heads_in_group") or 1
        if heads % group:
            raise ConfigError(f"n_heads_in_group {group} is no divisor of {heads} heads; not computed")
        return heads // group
    nested = text.get("attn_config")
    if isinstance(nested, Mapping) and nested.get("kv_n_heads") is not None:
        return whole(nested, "kv_n_heads")
    for key in ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_query_groups"):
        value = text.get(key)
        if isinstance(value, list):
            return number(key, value[place])
        # Falcon's old decoder writes its heads here and has one head of keys all the same
        if value is not None and not (text.get("multi_query") is True and text.get("new_decoder_architecture") is not True):
            return number(key, value)
    if text.get("multi_query_attention") is True:
        return whole(text, "multi_query_group_num")
    return 1 if text.get("multi_query") is True else heads


def _head_dims(text: Config, heads: int) -> tuple[int, int]:
    """(numbers per key, numbers per value)."""
    key = optional(text, "head_dim", "attention_head_dim", "kv_channels")
    if key is None:
        hidden = whole(text, "hidden_size", "n_embd", "d_model")
        if hidden % heads:
            raise ConfigError(f"hidden_size {hidden} is no multiple of {heads} heads and there is no head_dim; not computed")
        key = hidden // heads
    return key, optional(text, "v_head_dim") or key


def _attention(text: Config, groups: tuple[Group, ...]) -> str:
    if any(group.kind is Kind.LATENT for group in groups):
        return "MLA"
    counts = {group.kv_heads for group in groups if group.kind in (Kind.FULL, Kind.SLIDING)}
    if counts == {1}:
        return "MQA"
    return "MHA" if counts == {_heads(text)} else "GQA"


def _notes(model: ModelConfig, kinds: list[Kind], *, known: bool) -> list[str]:
    name, text = model.name, model.text
    notes = []
    counts = Counter(kinds)
    filled = [key for key in model.filled if key not in CONTEXT_KEYS]  # the context says itself where it is from
    if filled:
        values = ", ".join(f"{key} {text[key]}" for key in filled)
        notes.append(f"the config leaves out what its class in transformers knows: {values}")
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
    if optional(text, "num_nextn_predict_layers"):
        notes.append("the layer for multi-token prediction is not counted; it has a cache only where speculative decoding uses it")
    return notes
