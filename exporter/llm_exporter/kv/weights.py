"""How many bytes the weights take on the GPUs: from the files beside a config.json, else estimated from the config, and said so.

In: where the config lies, what it says. Out: `Weights`: bytes and their basis, or the reason why they are not known. Called by `fit.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from llm_exporter.errors import ConfigError
from llm_exporter.kv.dtypes import Served, served_dtype
from llm_exporter.kv.memory import MOST_BYTES
from llm_exporter.kv.modelconfig import ModelConfig
from llm_exporter.kv.parameters import Parameters, count_parameters
from llm_exporter.kv.quantization import read_quantization
from llm_exporter.kv.shape import Shape


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of all weights, on all GPUs together.

    Attributes:
        total_bytes: None where they are not known.
        basis: where the figure is from, or why there is none.
    """

    total_bytes: float | None
    basis: str


def find_weights(config_file: Path, model: ModelConfig, shape: Shape) -> Weights:
    """The files' own size where they lie beside the config, else an estimate."""
    served = served_dtype(model.dtype, model.name)
    found = _size_of_files(config_file.parent)
    if found is None:
        return estimate(model, shape)
    total, basis = found
    if model.dtype == "float32" and model.quantization is None:
        return Weights(total * served.element_bytes / 4, f"{basis}, in float32, halved as it is served in {served.dtype}")
    return Weights(total, basis)


def _size_of_files(directory: Path) -> tuple[float, str] | None:
    index = directory / "model.safetensors.index.json"
    try:
        total = json.loads(index.read_text(encoding="utf-8"))["metadata"]["total_size"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        total = None
    if isinstance(total, int | float) and 1 < total <= MOST_BYTES:
        return float(total), f"total_size of {index.name}"
    files = list(directory.glob("*.safetensors"))
    if files and all(file.is_file() for file in files):  # a link to a file that is not there has no size
        return float(sum(file.stat().st_size for file in files)), "size of the .safetensors files beside it"
    return None


def estimate(model: ModelConfig, shape: Shape) -> Weights:
    """From the config alone: parameters times their bytes."""
    served = served_dtype(model.dtype, model.name)
    try:
        parameters = count_parameters(model, shape)
        total, storage = _stored(parameters, model, served)
    except ConfigError as error:
        return Weights(None, str(error))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:  # a list that is too short, a number for a list, …
        return Weights(None, f"a key of the config has another form than in other models of its type: {error!r}")
    basis = f"estimated from the config: {parameters.total / 1e9:.4g} billion parameters, {storage}; --weights takes the true size"
    if parameters.missing:
        basis += f"; without the {' and the '.join(parameters.missing)}"
    if not shape.known:
        basis += "; counted as a model like Llama, which this architecture may not be"
    return Weights(total, basis)


def _stored(parameters: Parameters, model: ModelConfig, served: Served) -> tuple[float, str]:
    """(bytes, how): each part in its own dtype."""
    plain = served.element_bytes
    if model.quantization is None:
        return parameters.total * plain, served.dtype
    how = read_quantization(model.quantization)
    packed = parameters.experts + (parameters.attention if how.attention else 0) + (parameters.mlp if how.mlp else 0)
    rest = parameters.total - packed
    parts = "all linear layers" if how.attention and how.mlp else "experts" if not how.mlp else "MLPs"
    return packed * how.bits / 8 + rest * plain, f"{parts} in {how.label} of {how.bits:.4g} bits, the rest in {served.dtype}"
