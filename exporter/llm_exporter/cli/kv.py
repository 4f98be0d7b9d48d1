"""`llm-exporter kv CONFIG_JSON`: KV-cache bytes of a model, what fits into a GPU, and whether a server agrees."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llm_exporter.errors import ConfigError, UsageError
from llm_exporter.kv.dtypes import element_bytes, served_dtype
from llm_exporter.kv.fit import Budget, Demand, assumptions, judge
from llm_exporter.kv.layers import Kind
from llm_exporter.kv.memory import Cache, allowed_tensor_parallel, parse_bytes, size_text
from llm_exporter.kv.modelconfig import ModelConfig, read_config
from llm_exporter.kv.shape import Shape, shape_of
from llm_exporter.kv.weights import Weights, find_weights
from llm_exporter.wording import harmless

_UTILIZATION = 0.9  # the default of vLLM's --gpu-memory-utilization
_ASSUMED_CONTEXT = 32768
_MOST_TOKENS = 10**12
_MOST_REQUESTS = 10**9
_MOST_DIGITS = 640  # Python converts so many in any setting
_SCALES = {"": 1, "k": 2**10, "m": 2**20}


class Tokens(click.ParamType[int]):
    """A number of tokens: `32768` or `32K`."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """As click asks for it."""
        match = re.fullmatch(r"\s*(\d+)\s*([km]?)\s*", str(value).lower())
        if match is None or len(match[1]) > len(str(_MOST_TOKENS)) or not 0 < int(match[1]) * _SCALES[match[2]] <= _MOST_TOKENS:
            self.fail(f"{str(value)[:40]!r} is no number of tokens; write for example 32768 or 32K", param, ctx)
        return int(match[1]) * _SCALES[match[2]]


@click.command("kv")
@click.argument("config_json", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--gpu-memory", metavar="SIZE", help="Memory of one GPU, for example 80GiB.")
@click.option("--gpu-memory-utilization", type=click.FloatRange(0.05, 1), help="Share the engine may use; 0.9 where not given.")
@click.option("--weights", metavar="SIZE", help="Bytes of all weights. Default: from the files beside the config, else an estimate.")
@click.option("--context", metavar="TOKENS", type=Tokens(), help="Tokens per request, 32768 or 32K. Default: the model's limit.")
@click.option("--concurrency", type=click.IntRange(min=1), help="Requests at once: what they need, and how long each may be.")
@click.option("--kv-dtype", default="auto", show_default=True, help="auto, bf16, fp16, fp8, int8, …")
@click.option("--tensor-parallel", "--tp", default=1, show_default=True, type=click.IntRange(min=1), help="GPUs that share the heads.")
@click.option("--url", help="A running server of this model, to compare with its own figures.")
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="For --url; ${NAME} is read from the environment.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
@click.pass_context
def command(context: click.Context, /, config_json: Path, as_json: bool, **flags: Any) -> None:
    """Compute the KV-cache memory of the model whose Hugging Face config.json is CONFIG_JSON. All figures are for one GPU.

    Exit code 1: what was asked for does not fit, or the server of --url is not of this config.
    """
    document = kv_document(config_json, flags)
    if as_json:
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        _show(Console(), _printable(document))
    fits, server = document.get("fits") or {}, document.get("server") or {}
    if fits.get("does_fit") is False or server.get("agrees") is False:
        context.exit(1)


def kv_document(config_json: Path, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that is printed.

    Raises:
        ConfigError: the file is no config of a model with a known cache.
        UsageError: a flag.
        FetchError: the server of --url does not answer.
    """
    _check_flags(flags)
    config = _read_json(config_json)
    try:
        model = read_config(config)
        shape = shape_of(model)
        served = served_dtype(shape.dtype, model.name)
        size, dtype = element_bytes(flags["kv_dtype"], served, model.quantization)
    except ConfigError as error:
        raise ConfigError(harmless(f"{config_json}: {error}")) from None
    cache = Cache(shape, size, flags["tensor_parallel"])
    _check_split(cache)
    context, source = _context(flags["context"], shape)
    document: dict[str, Any] = {
        "architecture": shape.architecture,
        "known_architecture": shape.known,
        "attention": shape.attention,
        "layers": {kind.value: sum(group.layers for group in shape.groups if group.kind is kind) for kind in Kind},
        "window_tokens": sorted({group.window for group in shape.groups if group.window is not None}),
        "kv_heads": sorted({group.kv_heads for group in shape.groups if group.kv_heads}),
        "kv_dtype": dtype,
        "tensor_parallel": cache.tensor_parallel,
        "bytes_per_token": cache.bytes_per_token,
        "bytes_per_token_beyond_windows": cache.bytes_per_token_beyond_windows,
        "context_tokens": context,
        "context_source": source,
        "model_context_tokens": shape.context_tokens,
        "model_context_source": shape.context_source or None,
        "bytes_per_request": cache.bytes_per_request(context),
        "requests": flags["concurrency"],
        "bytes_of_requests": flags["concurrency"] * cache.bytes_per_request(context) if flags["concurrency"] else None,
        "notes": list(shape.notes),
        "assumptions": [served.assumption] if served.assumption and flags["kv_dtype"].lower() == "auto" else [],
    }
    if shape.context_tokens is not None and context > shape.context_tokens:
        document["notes"].append(
            f"--context {context} is beyond the model's {shape.context_tokens} tokens ({shape.context_source}): a server refuses it "
            "unless the positions are scaled (for example YaRN)"
        )
    if flags["gpu_memory"] is not None:
        document["fits"] = _fits(config_json, model, cache, context, flags, document)
    if flags["url"] is not None:
        from llm_exporter.cli.kv_server import compare_with_server

        document["server"] = asdict(compare_with_server(flags["url"], flags["headers"], model, cache))
    return document


def _read_json(file: Path) -> dict[str, Any]:
    what = "a Hugging Face config.json holds a JSON object"
    try:
        config = json.loads(file.read_text(encoding="utf-8"), parse_int=_parse_int)
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is no text; {what}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file} is no JSON (line {error.lineno}, column {error.colno}: {error.msg}); {what}") from None
    except (OSError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{file} holds a JSON {type(config).__name__}; {what}")
    return config


def _parse_int(digits: str) -> int | float:
    """Python refuses thousands of digits without a word on where; as infinity the number is refused by its key, where the key is read."""
    return int(digits) if len(digits) <= _MOST_DIGITS else float("-inf" if digits.startswith("-") else "inf")


def _printable(part: Any) -> Any:
    """The document with nothing in it that moves a terminal's cursor: names stand in it as the file and the server write them."""
    if isinstance(part, str):
        return harmless(part)
    if isinstance(part, Mapping):
        return {key: _printable(value) for key, value in part.items()}
    return [_printable(value) for value in part] if isinstance(part, list | tuple) else part


def _check_flags(flags: Mapping[str, Any]) -> None:
    """A flag without the one that it belongs to would be ignored in silence."""
    for name, needed in (("weights", "gpu_memory"), ("gpu_memory_utilization", "gpu_memory"), ("headers", "url")):
        if flags[name] and flags[needed] is None:
            flag = "header" if name == "headers" else name.replace("_", "-")
            raise UsageError(f"--{flag} says nothing without --{needed.replace('_', '-')}")
    if (flags["concurrency"] or 0) > _MOST_REQUESTS:
        raise UsageError(f"--concurrency: more requests than any server takes; allowed: 1 to {_MOST_REQUESTS}")


def _check_split(cache: Cache) -> None:
    allowed = allowed_tensor_parallel(cache.shape)
    if cache.tensor_parallel not in allowed:
        kept = sorted({group.kv_heads for group in cache.shape.groups if group.kv_heads and group.kind is not Kind.LATENT})
        heads = f"{cache.shape.heads} attention heads" + (f" and {', '.join(map(str, kept))} KV heads" if kept else "")
        raise UsageError(
            f"--tensor-parallel {cache.tensor_parallel}: {heads} cannot be shared evenly among {cache.tensor_parallel} GPUs; vLLM and "
            f"SGLang refuse it too. Possible: {', '.join(map(str, allowed))}"
        )


def _context(asked: int | None, shape: Shape) -> tuple[int, str]:
    """(tokens, where the figure is from)."""
    if asked is not None:
        return asked, "--context"
    if shape.context_tokens is not None:
        return shape.context_tokens, shape.context_source
    return _ASSUMED_CONTEXT, "assumed: the config names no limit; give --context"


def _fits(
    config_file: Path, model: ModelConfig, cache: Cache, context: int, flags: Mapping[str, Any], document: dict[str, Any]
) -> dict[str, Any]:
    memory = parse_bytes(flags["gpu_memory"], "--gpu-memory")
    if flags["weights"] is not None:
        weights = Weights(parse_bytes(flags["weights"], "--weights"), "given with --weights")
    else:
        weights = find_weights(config_file, model, cache.shape)
    if weights.total_bytes is None:
        document["notes"].append(f"what fits is not known, because the size of the weights is not: {weights.basis}; give --weights 16GiB")
        return {"memory_bytes": memory, "weight_bytes": None, "does_fit": None}
    budget = Budget(memory, flags["gpu_memory_utilization"] or _UTILIZATION, weights.total_bytes)
    fit = judge(cache, budget, Demand(flags["context"], flags["concurrency"]), context)
    document["assumptions"] += assumptions(cache, budget, context, weights.basis)
    if fit.does_fit and not fit.concurrency and flags["concurrency"] is None:
        document["notes"].append(
            f"not one request of {context} tokens fits: start the server with a shorter context (vLLM --max-model-len, SGLang "
            f"--context-length, at most {fit.longest_context_tokens}); vLLM refuses to start otherwise"
        )
    return asdict(fit)


def _show(console: Console, document: Mapping[str, Any]) -> None:
    layers = ", ".join(f"{count} {kind}" for kind, count in document["layers"].items() if count)
    window = f", window {document['window_tokens'][0]} tokens" if document["window_tokens"] else ""
    console.print(f"[bold]{escape(document['architecture'])}[/]: {document['attention']}, layers: {layers}{window}", highlight=False)
    table = Table(show_header=False)
    table.add_row("KV dtype", escape(document["kv_dtype"]))
    table.add_row("per token", _exact(document["bytes_per_token"]))
    if document["bytes_per_token_beyond_windows"] != document["bytes_per_token"]:
        table.add_row("per token beyond the windows", _exact(document["bytes_per_token_beyond_windows"]))
    context = document["context_tokens"]
    table.add_row("context", f"{context} tokens: {escape(document['context_source'])}")
    table.add_row(f"per request of {context} tokens", _exact(document["bytes_per_request"]))
    if document["requests"] is not None:
        table.add_row(f"{document['requests']} requests of {context} tokens", _exact(document["bytes_of_requests"]))
    if (fits := document.get("fits")) is not None:
        _show_fit(table, fits, context)
    if server := document.get("server"):
        table.add_row("the server runs", escape(", ".join(server["models"])) or "not said")
        table.add_row("the server holds", "not said" if server["capacity_tokens"] is None else f"{server['capacity_tokens']} tokens")
        if server["bytes_per_token_measured"] is not None:
            share = f"{server['difference_ratio']:+.1%} against ours" if server["difference_ratio"] is not None else ""
            table.add_row("its bytes per token", f"{server['bytes_per_token_measured']:.0f} ({share})")
    console.print(table)
    if document["tensor_parallel"] > 1:
        console.print(f"all figures for one of {document['tensor_parallel']} GPUs", highlight=False)
    for note in document["notes"]:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    for line in document["assumptions"]:
        console.print(f"assumed: {line}", highlight=False, markup=False, soft_wrap=True)
    if fits and fits["does_fit"] is False:
        console.print(fits["verdict"], style="bold red", highlight=False, markup=False, soft_wrap=True)
        console.print("to make it fit: " + "; or ".join(fits["remedies"]), highlight=False, markup=False, soft_wrap=True)
    if server:
        style = {True: "green", False: "bold red", None: "bold yellow"}[server["agrees"]]
        console.print(server["verdict"], style=style, highlight=False, markup=False, soft_wrap=True)


def _show_fit(table: Table, fits: Mapping[str, Any], context: int) -> None:
    """What fits; a model whose weights leave no room has no row that could be read as if some did."""
    if fits["does_fit"] is None:
        table.add_row("fits", "not known")
        return
    if fits["does_fit"] is False:
        table.add_row("fits", "NO")
    if fits["free_bytes"] > 0:
        table.add_row("free for the cache", size_text(fits["free_bytes"]))
        table.add_row("longest context of one request", _bound(fits["longest_context_tokens"], fits["longest_context_bound_by"]))
        table.add_row(f"requests of {context} tokens at once", str(fits["concurrency"]))
        if fits["requests"] is not None:
            each = _bound(fits["longest_context_tokens_of_each"], fits["longest_context_of_each_bound_by"])
            table.add_row(f"context of each of {fits['requests']} requests", each)


def _bound(tokens: int | None, binds: str | None) -> str:
    """A length and what limits it."""
    if tokens is None:
        return "no limit known: every layer has a window that fits, and the config names none"
    return f"{tokens} tokens, " + ("the model's own limit" if binds == "model" else "what the memory holds")


def _exact(count: float) -> str:
    return f"{count:.0f} B" + (f" = {size_text(count)}" if count >= 2**10 else "")
