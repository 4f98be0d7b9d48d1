"""Targets as they are now: the static ones, then those of files and endpoints in Prometheus' formats.

The daemon calls `Discovery.refresh(now)` every few seconds; a list is read when its `refresh_interval` has passed. No threads, no
clock of its own. What cannot be read keeps its last good list and says so; a file that is gone takes its targets with it, as in
Prometheus. The first of two targets with one name wins, the second is refused by name.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from llm_exporter.config.document import MAX_BYTES, printable
from llm_exporter.config.model import MAX_TARGETS, Config, FileSdConfig, HttpSdConfig, Target
from llm_exporter.config.sd_fetch import fetch_list
from llm_exporter.config.sd_format import Listed, parse_list, target_of
from llm_exporter.errors import SourceError

Fetch = Callable[[HttpSdConfig], bytes]


class DiscoveryProblem(NamedTuple):
    """Something that discovery refused or could not read.

    Attributes:
        source: which list, for example `file_sd_configs[0]`.
        reason: no_files, unreadable, parse, bad_target, bad_label, duplicate_name, too_many_targets, or the reason of the fetch.
        detail: a sentence for people; holds no secret.
    """

    source: str
    reason: str
    detail: str


class ListStatus(NamedTuple):
    """How one list stands.

    Attributes:
        source: which list, for example `http_sd_configs[0]`.
        ok: whether the last look read all of it.
        reason: of the first failure; empty where ok.
        detail: of the first failure; empty where ok.
        last_success: monotonic seconds of the last look that was ok; None before the first.
        targets: how many targets the list names now, refused ones left out.
    """

    source: str
    ok: bool
    reason: str
    detail: str
    last_success: float | None
    targets: int


class DiscoveryResult(NamedTuple):
    """All targets, static ones first, what was refused, and how each list stands."""

    targets: tuple[Target, ...]
    problems: tuple[DiscoveryProblem, ...]
    lists: tuple[ListStatus, ...]


@dataclass(slots=True)
class _File:
    """A file as it was when it was last read; `entries` are those of the last good reading."""

    stamp: tuple[int, int, int] | None = None
    entries: tuple[Listed, ...] = ()


class _FileList:
    """The files of one file_sd section."""

    def __init__(self, config: FileSdConfig) -> None:
        self._patterns = config.files
        self._files: dict[str, _File] = {}

    def look(self) -> tuple[tuple[Listed, ...], list[SourceError]]:
        """Entries of all files that match now, and what could not be read."""
        errors: list[SourceError] = []
        files: dict[str, _File] = {}
        for pattern in self._patterns:
            folder, name = os.path.split(pattern)
            matches = sorted(glob.glob(os.path.join(glob.escape(folder), name)))  # noqa: PTH118, PTH207  # keeps a relative pattern relative
            if not matches:
                errors.append(SourceError("no_files", f"no file matches {pattern}"))
            for path in matches:
                files[path] = self._files.get(path, _File())
                try:
                    _read_again(files[path], Path(path))
                except SourceError as error:
                    errors.append(error)
        self._files = files
        return tuple(entry for file in files.values() for entry in file.entries), errors


def _read_again(file: _File, path: Path) -> None:
    """Read a file that has changed since the last good reading; on failure its entries stay."""
    try:
        status = path.stat()
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp == file.stamp:
            return
        if not stat.S_ISREG(status.st_mode):
            raise SourceError("unreadable", f"{path} is no regular file")
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise SourceError("unreadable", f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise SourceError("too_large", f"{path} has more than {MAX_BYTES} bytes")
    file.entries = parse_list(content, str(path))
    file.stamp = stamp


class _HttpList:
    """The endpoint of one http_sd section."""

    def __init__(self, config: HttpSdConfig, fetch: Fetch) -> None:
        self._config = config
        self._fetch = fetch
        self._entries: tuple[Listed, ...] = ()

    def look(self) -> tuple[tuple[Listed, ...], list[SourceError]]:
        """Entries of the last good answer, and why there is no newer one."""
        try:
            self._entries = parse_list(self._fetch(self._config), "the answer")
        except SourceError as error:
            return self._entries, [error]
        return self._entries, []


class _Kept:
    """One list: when it is due, and what it gave at the last look."""

    def __init__(self, name: str, config: FileSdConfig | HttpSdConfig, source: _FileList | _HttpList) -> None:
        self.name = name
        self.config = config
        self.targets: tuple[Target, ...] = ()
        self.problems: list[DiscoveryProblem] = []
        self._interval = config.refresh_interval
        self._defaults = config.target
        self._source = source
        self._due = float("-inf")
        self._entries: tuple[Listed, ...] | None = None
        self._errors: list[SourceError] = []
        self._refused: list[DiscoveryProblem] = []
        self._last_success: float | None = None

    def again(self, name: str) -> _Kept:
        """The same list under a new configuration: read at once, and what it knew stays should that fail."""
        self.name = name
        self._due = float("-inf")
        return self

    def refresh(self, now: float) -> None:
        if now < self._due:
            return
        self._due = now + self._interval
        entries, self._errors = self._source.look()
        if not self._errors:
            self._last_success = now
        if entries != self._entries:
            self._entries = entries
            self._build(entries)
        self.problems = [DiscoveryProblem(self.name, error.reason, error.detail) for error in self._errors] + self._refused

    def _build(self, entries: Iterable[Listed]) -> None:
        targets: list[Target] = []
        self._refused = []
        for entry in entries:
            try:
                target, refused = target_of(entry, self._defaults)
            except SourceError as error:
                self._refused.append(DiscoveryProblem(self.name, error.reason, error.detail))
            else:
                targets.append(target)
                self._refused += [DiscoveryProblem(self.name, "bad_label", sentence) for sentence in refused]
        self.targets = tuple(targets)

    def status(self, accepted: int) -> ListStatus:
        first = self._errors[0] if self._errors else None
        return ListStatus(
            self.name, first is None, first.reason if first else "", first.detail if first else "", self._last_success, accepted
        )


class Discovery:
    """Keeps the lists of one configuration.

    Args:
        config: static targets, and where the lists are; file patterns are absolute when `load.py` made it.
        fetch: gets one http_sd list within its own time limit; raises `SourceError`.
        before: of the configuration before; a list that is configured as it was keeps what it knew, should it not be readable now.
    """

    def __init__(self, config: Config, fetch: Fetch = fetch_list, before: Discovery | None = None) -> None:
        self._static = config.targets
        known = [] if before is None else before.kept
        self.kept: list[_Kept] = []
        for section in ("file_sd_configs", "http_sd_configs"):
            for position, item in enumerate(getattr(config, section)):
                name = f"{section}[{position}]"
                old = next((kept for kept in known if kept.config == item and kept not in self.kept), None)
                source = _FileList(item) if isinstance(item, FileSdConfig) else _HttpList(item, fetch)
                self.kept.append(_Kept(name, item, source) if old is None else old.again(name))

    def refresh(self, now: float) -> DiscoveryResult:
        """Read the lists that are due and say which targets there are.

        Args:
            now: monotonic seconds.
        """
        targets = list(self._static)
        owner = {target.name: "targets" for target in targets}
        problems: list[DiscoveryProblem] = []
        lists: list[ListStatus] = []
        for kept in self.kept:
            kept.refresh(now)
            problems += kept.problems
            before = len(targets)
            for target in kept.targets:
                name = printable(target.name)
                if target.name in owner:
                    problems.append(
                        DiscoveryProblem(kept.name, "duplicate_name", f"{name} was refused: {owner[target.name]} has a target of this name")
                    )
                elif len(targets) >= MAX_TARGETS:
                    problems.append(
                        DiscoveryProblem(kept.name, "too_many_targets", f"{name} was refused: one exporter serves {MAX_TARGETS} targets")
                    )
                else:
                    owner[target.name] = kept.name
                    targets.append(target)
            lists.append(kept.status(len(targets) - before))
        return DiscoveryResult(tuple(targets), tuple(problems), tuple(lists))
