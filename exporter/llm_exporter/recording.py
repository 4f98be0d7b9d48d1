"""Recordings (CONTRACT 3): folders of pages by second, with GPU and host readings beside them; reading and writing.

`replay` and tests read them, `record` and the simulation write them. A folder holds `tNNN.prom` (a page), `tNNN.fail` (a failed scrape: one
line, the reason), and `gpu.jsonl`, `host.jsonl`, whose first line is second 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from llm_exporter.errors import UsageError
from llm_exporter.sources.engine import Failed, Fetched

_FILE = re.compile(r"t(\d{3,})\.(prom|fail)")
_REASON = re.compile(r"[a-z0-9_]+")


class Moment(NamedTuple):
    """One scrape of a recording, `second` seconds after its start."""

    second: float
    scraped: Fetched | Failed


class Recording(NamedTuple):
    """A folder, read: scrapes in order of time, and the hardware's lines as (second, line)."""

    name: str
    moments: tuple[Moment, ...]
    gpu: tuple[tuple[float, dict[str, Any]], ...]
    host: tuple[tuple[float, dict[str, Any]], ...]


def read_recording(folder: Path) -> Recording:
    """Reads a folder. Raises UsageError naming the file that is wrong."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; give the folder that holds tNNN.prom files")
    moments: dict[float, Moment] = {}
    for path in sorted(folder.iterdir()):
        match = _FILE.fullmatch(path.name)
        if match is None:
            continue
        second = float(match[1])
        if second in moments:
            raise UsageError(f"{path}: second {match[1]} is there twice; keep one of .prom and .fail")
        moments[second] = Moment(second, _scraped(path, match[2]))
    if not moments:
        raise UsageError(f"{folder}: holds no tNNN.prom or tNNN.fail; the number is seconds after the start, three digits or more")
    return Recording(
        folder.resolve().name,
        tuple(moments[second] for second in sorted(moments)),
        tuple(_lines(folder / "gpu.jsonl")),
        tuple(_lines(folder / "host.jsonl")),
    )


def _scraped(path: Path, ending: str) -> Fetched | Failed:
    if ending == "prom":
        body = path.read_bytes()
        content_type = "application/openmetrics-text; version=1.0.0" if body.rstrip().endswith(b"# EOF") else "text/plain; version=0.0.4"
        return Fetched(body, content_type, 0.0)
    reason = path.read_text(errors="replace").strip().splitlines()[:1]
    if not reason or not _REASON.fullmatch(reason[0]):
        raise UsageError(f"{path}: must hold one line, the reason, such as timeout or http_503")
    return Failed(reason[0], "recorded failure", "", 0.0)


def _lines(path: Path) -> Iterator[tuple[float, dict[str, Any]]]:
    if not path.exists():
        return
    start: float | None = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            at = float(row["t"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path}:{number}: must be a JSON object with unix time in t ({error})") from None
        start = at if start is None else start
        yield at - start, row


def write_moment(folder: Path, second: float, scraped: Fetched | Failed) -> None:
    """Writes one scrape. Bodies are written as they came; a failure keeps its reason only, since details may name hosts."""
    stem = folder / f"t{round(second):03d}"
    if isinstance(scraped, Fetched):
        stem.with_suffix(".prom").write_bytes(scraped.body)
    else:
        stem.with_suffix(".fail").write_text(scraped.reason + "\n")
