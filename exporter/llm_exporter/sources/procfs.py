"""Small reads of procfs and the cgroup file system, below a root that tests replace.

Everything here gives None or an empty result for what is not there any more: processes end while one looks at them.
"""

# ruff: noqa: PTH208  os.listdir is several times cheaper than Path.iterdir, and runs per process
from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

CLOCK_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_READ = 1 << 16


class Stat(NamedTuple):
    """What /proc/PID/stat says. `started` is in clock ticks since boot; with the pid it names a process for good."""

    pid: int
    parent: int
    comm: str
    state: str
    cpu_seconds: float
    started: int

    @property
    def alive(self) -> bool:
        """Whether it still runs: a zombie is dead, only not yet buried."""
        return self.state not in "ZXx"


def read(path: Path | str) -> bytes | None:
    """The file's bytes, None where it cannot be read. Much cheaper than `Path.read_bytes`, and there are many of them."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        chunks = []
        while chunk := os.read(descriptor, _READ):
            chunks.append(chunk)  # a short piece is not the end: procfs gives whole records
        return b"".join(chunks)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def text(path: Path | str) -> str | None:
    """The file as text."""
    content = read(path)
    return None if content is None else content.decode("utf-8", "replace")


def parse_stat(content: bytes | None) -> Stat | None:
    """A line of stat, of a process or a thread; `comm` may hold blanks and brackets."""
    if not content:
        return None
    head, _, tail = content.rpartition(b")")
    pid, _, comm = head.partition(b" (")
    fields = tail.split()
    try:
        return Stat(
            int(pid),
            int(fields[1]),
            comm.decode("utf-8", "replace"),
            fields[0].decode(),
            (int(fields[11]) + int(fields[12])) / CLOCK_TICKS,
            int(fields[19]),
        )
    except (ValueError, IndexError):
        return None


def process_ids(proc: Path) -> list[int]:
    """Ids of all processes that we can see."""
    try:
        return [int(name) for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return []


def thread_ids(proc: Path, pid: int) -> list[int]:
    """Ids of a process's threads."""
    try:
        return [int(name) for name in os.listdir(proc / str(pid) / "task")]
    except OSError:
        return []


def arguments(proc: Path, pid: int) -> list[str]:
    """Command line, word by word; titles written over it arrive as one word. May hold secrets: never log or keep it."""
    content = (read(proc / str(pid) / "cmdline") or b"").decode("utf-8", "replace")
    words = [word for word in content.split("\0") if word.strip()]
    return words[0].split() if len(words) == 1 else words


def schedstat(path: Path | str) -> tuple[float, float] | None:
    """Seconds on a core, and seconds runnable without one; None where the kernel does not say."""
    fields = (read(path) or b"").split()
    if len(fields) < 2:
        return None
    return int(fields[0]) / 1e9, int(fields[1]) / 1e9


def cpu_list(listing: str) -> frozenset[int]:
    """The kernel's notation of sets of CPUs: "0-3,8"."""
    cpus: set[int] = set()
    for part in listing.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def allowed_cpus(proc: Path, pid: int) -> frozenset[int]:
    """CPUs that the process may run on."""
    for line in (text(proc / str(pid) / "status") or "").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return cpu_list(line.partition(":")[2])
    return frozenset()


def existing(paths: Iterable[Path]) -> Path | None:
    """The first of them that is there."""
    return next((path for path in paths if path.exists()), None)
