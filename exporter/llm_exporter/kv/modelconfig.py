"""A Hugging Face config.json as the engines see it: the language model's part, with what the model's class fills in.

In: the parsed file. Out: a `ModelConfig` (name, keys, what was filled in) and its context limit. `shape.py` and `parameters.py` read
keys through it; files that leave out what their class knows (Gemma 3, Llama 4, Falcon) are as good as complete ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llm_exporter.errors import ConfigError
from llm_exporter.kv.numbers import CONTEXT_KEYS, Config, check_numbers, fraction, optional, shown, whole

# What the configuration classes of transformers 5.19.0 hold where a file is silent: a nested text_config is written without them,
# and some files are older than their class. A key that is there with null stays null.
_GEMMA3 = {
    "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 256, "num_hidden_layers": 26, "sliding_window": 4096, "max_position_embeddings": 131072,
}  # fmt: skip
_LLAMA4 = {
    "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 48,
    "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192, "num_local_experts": 16,
    "interleave_moe_layer_step": 1, "max_position_embeddings": 131072,
}  # fmt: skip
CLASS_DEFAULTS: Mapping[str, Config] = {
    "gemma": {"vocab_size": 256000, "head_dim": 256, "max_position_embeddings": 8192},
    "gemma2": {
        "vocab_size": 256000, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
        "max_position_embeddings": 8192,
    },
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gemma3n_text": {
        "vocab_size": 262400, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "num_hidden_layers": 35,
        "sliding_window": 512, "max_position_embeddings": 32768,
    },
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "falcon": {"vocab_size": 65024, "multi_query": True, "parallel_attn": True, "max_position_embeddings": 2048},
    "gpt2": {"vocab_size": 50257, "n_positions": 1024},
    "gpt_bigcode": {"vocab_size": 50257, "n_positions": 1024, "multi_query": True},
    "opt": {"vocab_size": 50272, "max_position_embeddings": 2048},
    "gpt_neox": {"max_position_embeddings": 2048},
    "mistral": {"max_position_embeddings": 131072, "vocab_size": 32000},
    "mixtral": {"max_position_embeddings": 131072, "num_local_experts": 8},
    "qwen2": {"vocab_size": 151936, "max_position_embeddings": 32768, "use_sliding_window": False},
    "qwen2_moe": {"vocab_size": 151936, "max_position_embeddings": 32768, "use_sliding_window": False},
    "qwen3": {"vocab_size": 151936, "max_position_embeddings": 32768, "head_dim": 128, "use_sliding_window": False},
    "qwen3_moe": {"use_sliding_window": False},
    "qwen3_next": {"full_attention_interval": 4, "max_position_embeddings": 32768},
    "jamba": {"attn_layer_period": 8, "attn_layer_offset": 4, "max_position_embeddings": 262144},
}  # fmt: skip
# Classes whose output table is the input table unless the file says otherwise.
_TIED = frozenset(
    """gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4_text gpt2 gpt_bigcode bloom opt mpt falcon cohere cohere2 starcoder2
    lfm2 smollm3 recurrent_gemma ernie4_5 ernie4_5_moe zamba2""".split()  # noqa: SIM905
)
# Kinds of position scaling whose factor is in max_position_embeddings already (vLLM 0.32.0, config/model.py `_get_and_verify_max_len`).
_SCALED_ALREADY = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "default", "mrope")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The part that describes the language model.

    Attributes:
        name: model_type in lower case, empty where there is none.
        text: its keys without nulls, the class's values among them.
        filled: the keys that the file leaves out and the class knows, in the table's order.
        root: the whole file: quantisation, dtype and vision stand there.
    """

    name: str
    text: Config
    filled: tuple[str, ...]
    root: Config

    def optional(self, *names: str) -> int | None:
        """The first of these keys that holds a whole number above 0.

        Raises:
            ConfigError: one holds what is no number of this key.
        """
        return optional(self.text, *names)

    def whole(self, *names: str) -> int:
        """The first of these keys that holds a whole number above 0.

        Raises:
            ConfigError: none does.
        """
        return whole(self.text, *names)

    @property
    def tied(self) -> bool:
        """Is the output table the input table?"""
        for part in (self.text, self.root):
            if isinstance(part.get("tie_word_embeddings"), bool):
                return bool(part["tie_word_embeddings"])
        return self.name in _TIED

    @property
    def dtype(self) -> str:
        """Of the checkpoint; empty where the file does not say."""
        for part in (self.text, self.root):
            value = part.get("torch_dtype") or part.get("dtype")
            if isinstance(value, str):
                return value.removeprefix("torch.")
        return ""

    @property
    def quantization(self) -> Config | None:
        """How the checkpoint is quantised, None where it is not."""
        for part in (self.root, self.text):
            for key in ("quantization_config", "compression_config"):
                if isinstance(part.get(key), Mapping):
                    return part[key]  # type: ignore[no-any-return]
        return None

    def context_limit(self) -> tuple[int, str] | None:
        """(tokens, where the figure is from); None where neither file nor class says it.

        Raises:
            ConfigError: a key of it holds what is no number of tokens.
        """
        found = [(value, key) for key in CONTEXT_KEYS if (value := self.optional(key)) is not None]
        if not found:
            return None
        tokens, key = min(found)
        where = f"{key}, the default of the model's class in transformers" if key in self.filled else f"{key} of the config"
        scaling = self.text.get("rope_scaling") or self.text.get("rope_parameters")
        if isinstance(scaling, Mapping) and not self.name.startswith("gemma3"):
            kind = scaling.get("rope_type") or scaling.get("type")
            factor = fraction(scaling, "factor") if isinstance(kind, str) and kind not in _SCALED_ALREADY else None
            if factor is not None and factor > 1:
                return int(tokens * factor), f"{key} × {factor:g} of {kind} scaling"
        return tokens, where


def read_config(config: Config) -> ModelConfig:
    """The language model's part, completed.

    Raises:
        ConfigError: a number that no model has, or a model_type that is no text.
    """
    check_numbers(config)
    text = _text_part(config)
    for part in (text, config):
        if not isinstance(part.get("model_type") or "", str):
            raise ConfigError(f"model_type {shown(part['model_type'])} is no text; allowed: a name such as 'llama'")
    name = str(text.get("model_type") or config.get("model_type") or "").lower()
    defaults = CLASS_DEFAULTS.get(name, {})
    filled = tuple(key for key in defaults if key not in text)
    complete = {key: value for key, value in {**defaults, **text}.items() if value is not None}
    return ModelConfig(name=name, text=complete, filled=filled, root=config)


def _text_part(config: Config) -> Config:
    """The language model's part of a config that also holds vision or audio."""
    while True:  # not by recursion: the depth is the file's choice
        parts = (config.get(key) for key in ("text_config", "llm_config", "language_config", "thinker_config"))
        inner = next((part for part in parts if isinstance(part, Mapping)), None)
        if inner is None:
            return config
        config = inner
