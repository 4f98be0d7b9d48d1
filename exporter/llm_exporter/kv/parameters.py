"""How many parameters a model has, by the parts that quantisation treats apart: counted from its config, without norms and biases.

In: a `ModelConfig` and its `Shape`. Out: `Parameters`, or an error that says why not. Called by `weights.py`.
The rules are those of the models' classes in transformers 5.19.0; the tests hold the sums against counts of those classes themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_exporter.errors import ConfigError
from llm_exporter.kv.layers import HYBRID, Kind
from llm_exporter.kv.modelconfig import ModelConfig
from llm_exporter.kv.numbers import optional
from llm_exporter.kv.shape import Shape

# MLPs of two matrices; all others have a third, the gate.
_NO_GATE = frozenset(
    """gpt2 gpt_neox gptj gpt_bigcode bloom opt mpt falcon starcoder2 phi nemotron apertus""".split()  # noqa: SIM905
)
# Attention whose query projection also makes an output gate of the same size.
_GATED_ATTENTION = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})
_LEARNED_POSITIONS = frozenset({"gpt2", "gpt_bigcode", "opt"})
# Parts that are not written down here: Mamba and the like, per-layer tables, experts beside dense MLPs, sizes that differ by layer.
_NOT_COUNTED = (HYBRID - _GATED_ATTENTION) | frozenset(
    """dbrx arctic grok-1 gemma3n gemma3n_text longcat_flash hunyuan_v1_moe openelm mimo_v2_flash""".split()  # noqa: SIM905
)
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of parameters.

    Attributes:
        embeddings: input and output tables, learned positions.
        attention: of every kind, linear attention too.
        mlp: dense MLPs and experts that see every token.
        experts: those that a router chooses.
        routers: and other small parts that stay unquantised.
        vision: the encoder of pictures.
        missing: parts that the model has and that are not in here.
    """

    embeddings: int
    attention: int
    mlp: int
    experts: int
    routers: int
    vision: int
    missing: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Of everything counted."""
        return self.embeddings + self.attention + self.mlp + self.experts + self.routers + self.vision


def count_parameters(model: ModelConfig, shape: Shape) -> Parameters:
    """Counts.

    Raises:
        ConfigError: an architecture with parts that are not written down here, or a key that is missing.
    """
    if model.name in _NOT_COUNTED:
        raise ConfigError(f"the parameters of {model.name} are not written down here")
    hidden = model.whole("hidden_size", "n_embd", "d_model", "n_embed")
    vocabulary = model.whole("vocab_size", "padded_vocab_size")
    embeddings = vocabulary * hidden * (1 if model.tied else 2)
    if model.name in _LEARNED_POSITIONS:
        embeddings += model.whole("n_positions", "max_position_embeddings") * hidden
    mlp, experts, routers = _mlps(model, shape.layers, hidden)
    vision, missing = _vision(model.root)
    attention = sum(_attention(model, shape, group.kind, hidden) for group in shape.groups for _ in range(group.layers))
    return Parameters(embeddings, attention, mlp, experts, routers, vision, missing)


def _attention(model: ModelConfig, shape: Shape, kind: Kind, hidden: int) -> int:
    """Of one layer."""
    heads = shape.heads
    if kind is Kind.LATENT:
        rope, nope, value = (model.whole(key) for key in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
        rank, query_rank = model.whole("kv_lora_rank"), model.optional("q_lora_rank")
        query = query_rank * (hidden + heads * (nope + rope)) if query_rank else hidden * heads * (nope + rope)
        return query + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    if kind in (Kind.FULL, Kind.SLIDING):
        group = next(group for group in shape.groups if group.kind is kind)
        # query and key have `key` numbers a head, value and output `value`; the group knows key + value
        gate = heads * group.elements_per_head // 2 if model.name in _GATED_ATTENTION else 0
        return hidden * ((heads + group.kv_heads) * group.elements_per_head + gate)
    if kind is Kind.STATE and model.name in _GATED_ATTENTION:
        keys = model.whole("linear_num_key_heads") * model.whole("linear_key_head_dim")
        values = model.whole("linear_num_value_heads") * model.whole("linear_value_head_dim")
        return hidden * (2 * keys + 3 * values + 2 * model.whole("linear_num_value_heads"))
    raise ConfigError(f"the parameters of a layer of kind {kind.value} are not written down here")


def _mlps(model: ModelConfig, layers: int, hidden: int) -> tuple[int, int, int]:
    """(dense and shared, routed experts, routers), all layers together."""
    matrices = 2 if model.name in _NO_GATE else 3
    width = model.optional("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner") or 4 * hidden
    count = model.optional(*_EXPERTS)
    if count is None:
        return layers * matrices * hidden * width, 0, 0
    expert_width = model.optional("moe_intermediate_size", "expert_ffn_hidden_size") or width
    only_dense = model.text.get("mlp_only_layers")
    dense_places = frozenset(only_dense if isinstance(only_dense, list) else ())
    sparse = sum(place not in dense_places and _is_sparse(model, place) for place in range(layers))
    shared_width = model.optional("shared_expert_intermediate_size")
    if shared_width is None:
        shared = model.optional("n_shared_experts", "num_shared_experts", "moe_num_shared_experts") or 0
        shared_width = expert_width if model.name.startswith("llama4") else shared * expert_width
    dense_width = model.optional("intermediate_size_mlp") or width
    dense = matrices * hidden * ((layers - sparse) * dense_width + sparse * shared_width)
    return dense, sparse * count * matrices * hidden * expert_width, sparse * count * hidden


def _is_sparse(model: ModelConfig, place: int) -> bool:
    """Does the layer at this place have experts, where `mlp_only_layers` does not name it?"""
    text: Mapping[str, Any] = model.text
    first = model.optional("first_k_dense_replace", "moe_layer_start_index") or 0
    if place < first:
        return False
    listed = text.get("mlp_layer_types")
    if isinstance(listed, list):
        return bool(listed[place] == "sparse")
    frequency = text.get("moe_layer_freq")
    if isinstance(frequency, list):
        return bool(frequency[place])
    if (every := model.optional("moe_layer_freq") or 1) > 1:
        return place % every == 0
    step = model.optional("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval") or 1
    return (place + 1) % step == 0


def _vision(root: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """(parameters of a plain vision transformer, what is missing beside it)."""
    missing = ("audio encoder",) if isinstance(root.get("audio_config"), Mapping) else ()
    part = root.get("vision_config")
    if not isinstance(part, Mapping):
        return 0, missing
    hidden, width, layers = (optional(part, key) for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    if hidden is None or width is None or layers is None:
        return 0, (*missing, "vision encoder")
    return layers * (4 * hidden * hidden + 2 * hidden * width), missing
