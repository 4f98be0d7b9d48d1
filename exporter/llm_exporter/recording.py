"""Recordings (CONTRACT 3): folders of pages by second, with GPU and host readings beside them; reading and writing.

`replay` and tests read them, `record` and the simulation write them. A folder holds `tNNN.prom` (a page), `tNNN.fail` (a failed scrape: one
line, the reason), `gpu.jsonl` and `host.jsonl`, whose first line is second 0, and `meta.json` (who was recorded, and what is known of it;
where it says `started_at`, that is second 0 of all).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
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
    """A folder, read: scrapes in order of time, the hardware's lines as (second, line), and what meta.json says ({} without one)."""

    name: str
    moments: tuple[Moment, ...]
    gpu: tuple[tuple[float, dict[str, Any]], ...]
    host: tuple[tuple[float, dict[str, Any]], ...]
    meta: Mapping[str, Any] = MappingProxyType({})

    @property
    def engine_version(self) -> str:
        """The engine's version as meta.json has it ("vllm 0.22.0"); "" where it does not say."""
        words = str(self.meta.get("engine", "")).split()
        return words[1] if len(words) > 1 and words[0] in ("vllm", "sglang") and words[1][:1].isdigit() else ""

    @property
    def started_at(self) -> float | None:
        """Unix time of second 0; None where it is not known."""
        started = self.meta.get("started_at")
        return float(started) if isinstance(started, int | float) and not isinstance(started, bool) else None


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
        inside = recordings_in(folder)
        if inside:
            raise UsageError(f"{folder}: is no recording but holds {len(inside)}, one of each target: give {_named(inside)}")
        raise UsageError(f"{folder}: holds no tNNN.prom or tNNN.fail; the number is seconds after the start, three digits or more")
    found = Recording(folder.resolve().name, tuple(moments[second] for second in sorted(moments)), (), (), _meta(folder / "meta.json"))
    return found._replace(
        gpu=tuple(_lines(folder / "gpu.jsonl", found.started_at)), host=tuple(_lines(folder / "host.jsonl", found.started_at))
    )


def recordings_in(folder: Path) -> list[Path]:
    """The recordings right below a folder, by name: `record --out DIR` makes one of each target."""
    below = sorted(path for path in folder.iterdir() if path.is_dir())
    return [path for path in below if any(_FILE.fullmatch(file.name) for file in path.iterdir())]


def _named(folders: Sequence[Path], most: int = 8) -> str:
    return " ".join(map(str, folders[:most])) + (f" (and {len(folders) - most} more)" if len(folders) > most else "")


def _meta(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path}: is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path}: must hold a JSON object")
    return found


def _scraped(path: Path, ending: str) -> Fetched | Failed:
    if ending == "prom":
        body = path.read_bytes()
        content_type = "application/openmetrics-text; version=1.0.0" if body.rstrip().endswith(b"# EOF") else "text/plain; version=0.0.4"
        return Fetched(body, content_type, 0.0)
    reason = path.read_text(errors="replace").strip().splitlines()[:1]
    if not reason or not _REASON.fullmatch(reason[0]):
        raise UsageError(f"{path}: must hold one line, the reason, such as timeout or http_503")
    return Failed(reason[0], "recorded failure", "", 0.0)


def _lines(path: Path, start: float | None) -> Iterator[tuple[float, dict[str, Any]]]:
    if not path.exists():
        return
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


def new_folder(parent: Path, name: str) -> Path:
    """Makes DIR/NAME for a recording. Raises UsageError where NAME is no folder's name or holds something already."""
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise UsageError(f"a recording's folder cannot be named {name!r}; give the target another name")
    folder = parent / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        filled = any(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made ({error.strerror}); give --out another folder") from None
    if filled:
        raise UsageError(f"{folder}: is not empty; a recording starts in an empty folder, so give --out a new one")
    return folder


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Appends readings to gpu.jsonl or host.jsonl, one object a line."""
    text = "".join(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n" for row in rows)
    if text:
        with path.open("a") as file:
            file.write(text)


def write_meta(folder: Path, meta: Mapping[str, Any]) -> None:
    """Writes meta.json whole, so that a reader never sees half of it."""
    draft = folder / ".meta.json"
    draft.write_text(json.dumps(meta, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    draft.replace(folder / "meta.json")
