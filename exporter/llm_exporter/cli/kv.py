"""`llm-exporter kv CONFIG_JSON`: KV-cache bytes of a model, what fits into a GPU, and whether a server agrees."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from llm_exporter.errors import ConfigError
from llm_exporter.kv.memory import Cache, element_bytes, measured_bytes_per_token, parse_bytes
from llm_exporter.kv.shape import Kind, read_shape
from llm_exporter.kv.weights import weight_bytes
from llm_exporter.sources.probe import TlsSettings

_WORKSPACE = 2**30  # activations, graphs, the framework's own: what engines keep free beside weights and cache, roughly


@click.command("kv")
@click.argument("config_json", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--gpu-memory", metavar="SIZE", help="Memory of one GPU, for example 80GiB.")
@click.option("--gpu-memory-utilization", default=0.9, show_default=True, type=click.FloatRange(0.05, 1), help="Share the engine may use.")
@click.option("--weights", metavar="SIZE", help="Bytes of all weights. Default: from the files beside the config, else an estimate.")
@click.option("--context", metavar="TOKENS", type=click.IntRange(min=1), help="Tokens per request. Default: what the config allows.")
@click.option("--concurrency", type=click.IntRange(min=1), help="Requests at once: how long may each be?")
@click.option("--kv-dtype", default="auto", show_default=True, help="auto, bf16, fp16, fp8, int8, …")
@click.option("--tensor-parallel", "--tp", default=1, show_default=True, type=click.IntRange(min=1), help="GPUs that share the heads.")
@click.option("--url", help="A running server of this model, to compare with its own figures.")
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="For --url; ${NAME} is read from the environment.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def command(config_json: Path, as_json: bool, **flags: Any) -> None:
    """Compute the KV-cache memory of the model whose Hugging Face config.json is CONFIG_JSON. All figures are for one GPU."""
    document = kv_document(config_json, flags)
    if as_json:
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        _show(Console(), document)


def kv_document(config_json: Path, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that is printed.

    Raises:
        ConfigError: the file is no config of a model with a known cache.
        UsageError: a flag.
        FetchError: the server of --url does not answer.
    """
    try:
        config = json.loads(config_json.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{config_json}: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{config_json}: a config.json holds an object, this holds {type(config).__name__}")
    shape = read_shape(config)
    size, dtype = element_bytes(flags["kv_dtype"], shape.dtype)
    cache = Cache(shape, size, flags["tensor_parallel"])
    context = flags["context"] or shape.context_tokens or 32768
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
        "model_context_tokens": shape.context_tokens,
        "bytes_per_request": cache.bytes_per_request(context),
        "notes": list(shape.notes),
        "assumptions": [],
    }
    if shape.context_tokens is not None and context > shape.context_tokens:
        document["notes"].append(
            f"--context {context} is beyond the {shape.context_tokens} tokens of the model's config: a server refuses it unless "
            "the positions are scaled (for example YaRN)"
        )
    if flags["gpu_memory"] is not None:
        document["fits"] = _fits(config_json, config, cache, context, flags, document["assumptions"])
    if flags["url"] is not None:
        document["server"] = _server(flags["url"], flags["headers"], cache)
    return document


def _fits(
    config_file: Path, config: Mapping[str, Any], cache: Cache, context: int, flags: Mapping[str, Any], assumptions: list[str]
) -> dict[str, Any]:
    memory, utilization = parse_bytes(flags["gpu_memory"], "--gpu-memory"), flags["gpu_memory_utilization"]
    if flags["weights"] is not None:
        weights, source = parse_bytes(flags["weights"], "--weights"), "given"
    else:
        found = weight_bytes(config_file, config)
        if found is None:
            raise ConfigError("the size of the weights is not known from the config; give it with --weights 16GiB")
        weights, source = found
    per_gpu = weights / cache.tensor_parallel
    free = memory * utilization - per_gpu - _WORKSPACE
    assumptions += [
        f"the engine uses {utilization:.0%} of {_size(memory)}",
        f"weights take {_size(per_gpu)} on each GPU ({source})",
        f"{_size(_WORKSPACE)} are kept free for activations and the framework",
        "requests share nothing; a shared prefix lets more fit",
    ]
    fits: dict[str, Any] = {"memory_bytes": memory, "weight_bytes": per_gpu, "free_bytes": max(0.0, free), "longest_context_tokens": 0}
    missing = cache.bytes_per_request(1) - free
    fits["does_fit"] = missing <= 0
    if missing > 0:
        fits["missing_bytes"], fits["concurrency"] = missing, 0
        fits["verdict"] = f"does not fit: needs {_size(missing)} more on each GPU for the weights, the workspace and one token of cache"
        return fits
    limit = cache.shape.context_tokens
    fits["longest_context_tokens"], fits["longest_context_bound_by"] = _capped(cache.longest_context(free), limit)
    fits["capacity_tokens"] = int(free // cache.bytes_per_token)
    fits["concurrency"] = cache.concurrency(free, context)
    if flags["concurrency"] is not None:
        fits["requests"] = flags["concurrency"]
        each = _capped(cache.longest_context(free, flags["concurrency"]), limit)
        fits["longest_context_tokens_of_each"], fits["longest_context_of_each_bound_by"] = each
    return fits


def _capped(tokens: int | None, limit: int | None) -> tuple[int | None, str | None]:
    """(tokens, what binds: "memory" or "model"); None, None where nothing does.

    Args:
        tokens: what the memory holds; None: any number.
        limit: what the model's config allows; None: it does not say.
    """
    if limit is not None and (tokens is None or tokens >= limit):
        return limit, "model"
    return tokens, None if tokens is None else "memory"


def _server(url: str, headers: tuple[str, ...], cache: Cache) -> dict[str, Any]:
    """The server's own figures beside ours."""
    from llm_exporter.cli.measuring import parse_headers
    from llm_exporter.probing.servers import Asker, describe

    facts = describe(Asker(url.rstrip("/"), parse_headers(headers, os.environ), TlsSettings()))
    tokens, memory = facts.kv_cache_capacity_tokens, facts.kv_cache_bytes
    measured = measured_bytes_per_token(memory / 2**30, tokens) if tokens and memory else None
    ours = cache.bytes_per_token
    return {
        "url": url,
        "engine": facts.engine or None,
        "capacity_tokens": tokens,
        "kv_cache_bytes": memory,
        "kv_dtype": facts.conditions.get("kv_cache_dtype"),
        "bytes_per_token_measured": measured,
        "capacity_bytes_by_our_figure": tokens * ours if tokens else None,
        "difference_ratio": measured / ours - 1 if measured and ours else None,
    }


def _size(count: float) -> str:
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count:.0f} B"


def _show(console: Console, document: Mapping[str, Any]) -> None:
    layers = ", ".join(f"{count} {kind}" for kind, count in document["layers"].items() if count)
    window = f", window {document['window_tokens'][0]} tokens" if document["window_tokens"] else ""
    console.print(f"[bold]{document['architecture']}[/]: {document['attention']}, layers: {layers}{window}", highlight=False)
    table = Table(show_header=False)
    table.add_row("KV dtype", document["kv_dtype"])
    table.add_row("per token", _exact(document["bytes_per_token"]))
    if document["bytes_per_token_beyond_windows"] != document["bytes_per_token"]:
        table.add_row("per token beyond the windows", _exact(document["bytes_per_token_beyond_windows"]))
    table.add_row(f"per request of {document['context_tokens']} tokens", _exact(document["bytes_per_request"]))
    if fits := document.get("fits"):
        if "verdict" in fits:
            table.add_row("fits", fits["verdict"])
        else:
            table.add_row("free for the cache", _size(fits["free_bytes"]))
            table.add_row("longest context of one request", _bound(fits["longest_context_tokens"], fits["longest_context_bound_by"]))
            table.add_row(f"requests of {document['context_tokens']} tokens at once", str(fits["concurrency"]))
        if "longest_context_tokens_of_each" in fits:
            each = _bound(fits["longest_context_tokens_of_each"], fits["longest_context_of_each_bound_by"])
            table.add_row(f"context of each of {fits['requests']} requests", each)
    if server := document.get("server"):
        table.add_row("the server holds", "not said" if server["capacity_tokens"] is None else f"{server['capacity_tokens']} tokens")
        if server["bytes_per_token_measured"] is not None:
            share = f"{server['difference_ratio']:+.1%} against ours" if server["difference_ratio"] is not None else ""
            table.add_row("its bytes per token", f"{server['bytes_per_token_measured']:.0f} ({share})")
    console.print(table)
    if document["tensor_parallel"] > 1:
        console.print(f"all figures for one of {document['tensor_parallel']} GPUs", highlight=False)
    for note in document["notes"]:
        console.print(f"note: {note}", highlight=False)
    for line in document["assumptions"]:
        console.print(f"assumed: {line}", highlight=False)


def _bound(tokens: int | None, binds: str | None) -> str:
    """A length and what limits it."""
    if tokens is None:
        return "no limit"
    return f"{tokens} tokens, " + ("the model's own limit" if binds == "model" else "what the memory holds")


def _exact(count: float) -> str:
    return f"{count:.0f} B" + (f" = {_size(count)}" if count >= 2**10 else "")
