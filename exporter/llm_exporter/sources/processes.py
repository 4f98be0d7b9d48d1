"""Which processes belong to a target: by its listening socket, by NVML, by command line; then all their children.

`host.py` asks once a second; the answer is worked out anew every 10 s, or sooner when a process ended or an unknown one
appeared on a GPU. What cannot be known has a reason, never a guess.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from llm_exporter.hardware import role_of, safe_command
from llm_exporter.sources import procfs
from llm_exporter.sources.sockets import Names, Owners, listeners, matches, own_addresses

RESCAN_SECONDS = 10.0
_RESCAN_SOON_SECONDS = 1.0
_DEFAULT_PORTS = {"vllm": 8000, "sglang": 30000}

# Reasons why a target's processes are not known.
REMOTE = "remote"  # it runs on another machine
NOT_FOUND = "process_not_found"  # nothing here listens on its port, or several could be it
NO_PERMISSION = "no_permission"  # somebody else's descriptors may not be read
OTHER_NAMESPACE = "other_pid_namespace"  # the socket is here, its process is not


class ProcessSearch(NamedTuple):
    """What the configuration says about a target's processes (CONTRACT 4 `process`)."""

    target: str
    host: str
    port: int
    find: str = "auto"
    cmdline: str = ""

    @classmethod
    def of(cls, target: str, url: str, find: str = "auto", cmdline: str | None = None) -> ProcessSearch:
        """From a target's name, URL and `process` section."""
        parts = urlsplit(url)
        return cls(target, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80), find, cmdline or "")


class Found(NamedTuple):
    """Processes of a target by pid, with their work; `reason` where there are none."""

    roles: Mapping[int, str]
    reason: str = ""


class ProcessFinder:
    """Finds the processes of all targets in one look at procfs.

    Args:
        proc: mount point of procfs.
        names: host names to addresses.
        own_pid: this program, which is never part of a target.
    """

    def __init__(self, proc: Path = Path("/proc"), *, names: Names | None = None, own_pid: int | None = None) -> None:
        self._proc = proc
        self._names = names or Names()
        self._own_pid = os.getpid() if own_pid is None else own_pid
        self._owners = Owners(proc)
        self._searches: tuple[ProcessSearch, ...] = ()
        self._found: dict[str, Found] = {}
        self._seen_gpu_pids: frozenset[int] = frozenset()
        self._scanned_at = float("-inf")
        self._soon = False

    def find(self, searches: Sequence[ProcessSearch], gpu_pids: Iterable[int], now: float) -> Mapping[str, Found]:
        """Processes by target name."""
        gpus = frozenset(gpu_pids)
        age = now - self._scanned_at
        urgent = self._soon or bool(gpus - self._seen_gpu_pids)
        if tuple(searches) != self._searches or age >= RESCAN_SECONDS or (urgent and age >= _RESCAN_SOON_SECONDS):
            self._searches, self._seen_gpu_pids = tuple(searches), gpus
            self._scanned_at = now
            self._found = self._scan(gpus, now)
            self._soon = self._names.pending
        return self._found

    def look_again(self) -> None:
        """A process ended: work the answer out anew as soon as that is cheap."""
        self._soon = True

    # ---- one look ----

    def _scan(self, gpu_pids: frozenset[int], now: float) -> dict[str, Found]:
        table = _process_table(self._proc)
        children: dict[int, list[int]] = {}
        for stat in table.values():
            children.setdefault(stat.parent, []).append(stat.pid)
        tree = _Tree(self._proc, table, children, self._own_pid)
        sockets, own = listeners(self._proc), own_addresses(self._proc)
        hostname = (procfs.text(self._proc / "sys/kernel/hostname") or "").strip()

        found: dict[str, Found] = {}
        wanted: dict[str, frozenset[str]] = {}
        here: dict[str, bool] = {}
        for search in self._searches:
            addresses = self._names.addresses("localhost" if search.host == hostname else search.host, now)
            here[search.target] = any(a.is_loopback or a.is_unspecified or a in own for a in addresses)
            wanted[search.target] = frozenset(s.inode for s in sockets if matches(s, addresses, search.port))
        holders, refused = self._holders(wanted, here, table)
        undecided = []
        for search in self._searches:
            if search.find == "cmdline":
                found[search.target] = self._by_command(search, tree)
            elif not here[search.target] and search.find != "nvml":
                found[search.target] = Found({}, REMOTE)
            elif search.find != "nvml" and (pids := holders[search.target]):
                found[search.target] = Found(tree.family(pids, gpu_pids, serving=pids))
            elif search.find == "auto" and search.cmdline:
                found[search.target] = self._by_command(search, tree)
            elif search.find == "port":
                found[search.target] = Found({}, self._reason(bool(wanted[search.target]), refused[search.target]))
            else:
                undecided.append(search)
        claimed = {pid for answer in found.values() for pid in answer.roles}
        for search in undecided:
            roots = tree.roots(pid for pid in gpu_pids if pid in table and pid not in claimed)
            if len(roots) > 1 or len(undecided) > 1:
                roots = {root for root in roots if tree.serves_port(root, search.port)}
            if not roots and search.find == "auto":
                roots = tree.engines_on(search.port)  # still loading: no socket, nothing on a GPU yet
            if len(roots) == 1:
                found[search.target] = Found(tree.family(roots, gpu_pids, serving=frozenset()))
            else:
                reason = self._reason(bool(wanted[search.target]), refused[search.target])
                found[search.target] = Found({}, self._nvml_reason(reason, gpu_pids, table))
        return found

    def _holders(
        self, wanted: Mapping[str, frozenset[str]], here: Mapping[str, bool], table: Mapping[int, procfs.Stat]
    ) -> tuple[dict[str, frozenset[int]], dict[str, bool]]:
        needed = {target: inodes for target, inodes in wanted.items() if here[target]}
        self._owners.look(frozenset().union(*needed.values()), table)
        holders: dict[str, frozenset[int]] = dict.fromkeys(wanted, frozenset())
        refused = dict.fromkeys(wanted, False)
        for target, inodes in needed.items():
            pids, refused[target] = self._owners.of(inodes, table)
            holders[target] = frozenset(pids - {self._own_pid})
        return holders, refused

    def _by_command(self, search: ProcessSearch, tree: _Tree) -> Found:
        pattern = re.compile(search.cmdline)
        matching = [pid for pid in tree.table if tree.is_other(pid) and pattern.search(tree.command_line(pid))]
        roots = tree.topmost(matching)
        return Found(tree.family(roots, frozenset(), serving=frozenset())) if roots else Found({}, NOT_FOUND)

    def _reason(self, listening: bool, refused: bool) -> str:
        if not listening:
            return NOT_FOUND
        # With hidepid we see our own processes only; pid 1 is then not among them.
        return NO_PERMISSION if refused or not (self._proc / "1").exists() else OTHER_NAMESPACE

    def _nvml_reason(self, reason: str, gpu_pids: frozenset[int], table: Mapping[int, procfs.Stat]) -> str:
        if reason == NOT_FOUND and gpu_pids and not gpu_pids & table.keys():
            return OTHER_NAMESPACE
        return reason


class _Tree:
    """The processes of this machine as a tree, at one moment."""

    def __init__(self, proc: Path, table: Mapping[int, procfs.Stat], children: Mapping[int, list[int]], own_pid: int) -> None:
        self._proc = proc
        self.table = table
        self._children = children
        self._ours = {own_pid} | self._ancestors(own_pid) | set(self._below({own_pid}))
        self._words: dict[int, list[str]] = {}

    def role(self, pid: int) -> str:
        return role_of(self.table[pid].comm, safe_command(self._arguments(pid)))

    def command_line(self, pid: int) -> str:
        """The whole of it, for a search only: options hold secrets."""
        return " ".join(self._arguments(pid))

    def is_other(self, pid: int) -> bool:
        """Neither this program, nor what started it, nor what it started."""
        return pid not in self._ours

    def roots(self, pids: Iterable[int]) -> set[int]:
        """The servers that these processes are part of: the highest parent that is still an engine's."""
        return {self._top(pid) for pid in pids if self.is_other(pid)}

    def topmost(self, pids: Iterable[int]) -> set[int]:
        """Those that are below no other of them."""
        given = set(pids)
        return {pid for pid in given if not self._ancestors(pid) & given}

    def family(self, pids: Iterable[int], gpu_pids: frozenset[int], *, serving: frozenset[int]) -> dict[int, str]:
        """These processes, their server's parents and all their children, with their work.

        A process without a title that answers HTTP is an API server; one that holds GPU memory is a worker.
        """
        roots = self.roots(pids) or set(pids)
        roles = {}
        for pid in sorted(roots | set(self._below(roots))):
            role = self.role(pid)
            if role == "other" and pid in serving:
                role = "api_server"
            elif role == "other" and pid in gpu_pids:
                role = "worker"
            roles[pid] = role
        return roles

    def serves_port(self, pid: int, port: int) -> bool:
        """Whether the command line of the process, or of one below it, names this port, or none where it is the default."""
        return any(self._port(member) == port for member in (pid, *self._below({pid})))

    def engines_on(self, port: int) -> set[int]:
        """Engine servers whose command line names this port."""
        servers = [pid for pid in self.table if self.is_other(pid) and self.role(pid) == "api_server"]
        return self.topmost(pid for pid in servers if self._port(pid) == port)

    def _port(self, pid: int) -> int | None:
        words = self._arguments(pid)
        for position, word in enumerate(words):
            name, equals, value = word.partition("=")
            if name == "--port":
                value = value if equals else next(iter(words[position + 1 :]), "")
                return int(value) if value.isdigit() else None
        line = " ".join(words)
        if role_of("", line) != "api_server":
            return None
        return next((port for engine, port in _DEFAULT_PORTS.items() if engine in line), None)

    def _top(self, pid: int) -> int:
        while (parent := self.table[pid].parent) in self.table and self.is_other(parent) and self.role(parent) != "other":
            pid = parent
        return pid

    def _ancestors(self, pid: int) -> set[int]:
        found: set[int] = set()
        while pid in self.table and (pid := self.table[pid].parent) not in found and pid:
            found.add(pid)
        return found

    def _below(self, pids: set[int]) -> list[int]:
        found: list[int] = []
        seen, pending = set(pids), list(pids)
        while pending:
            for child in self._children.get(pending.pop(), ()):
                if child not in seen:
                    seen.add(child)
                    found.append(child)
                    pending.append(child)
        return found

    def _arguments(self, pid: int) -> list[str]:
        if pid not in self._words:
            self._words[pid] = procfs.arguments(self._proc, pid)
        return self._words[pid]


def _process_table(proc: Path) -> dict[int, procfs.Stat]:
    stats = (procfs.parse_stat(procfs.read(f"{proc}/{pid}/stat")) for pid in procfs.process_ids(proc))
    return {stat.pid: stat for stat in stats if stat is not None and stat.alive}
