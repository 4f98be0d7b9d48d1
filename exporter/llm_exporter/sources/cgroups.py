"""CPU limits of a process's cgroup and its ancestors: quota, throttling, pressure; cgroup v1, v2 and both mounted at once.

Used by `host.py`. Where a process's cgroup lies outside what is mounted here (another cgroup namespace), nothing is
known and nothing is said.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from llm_exporter.hardware import CgroupReading, cgroup_reading, pressure_seconds
from llm_exporter.sources import procfs


class Group(NamedTuple):
    """A directory of the CPU controller. `version` 1 or 2."""

    path: Path
    version: int


class CgroupTree:
    """Finds and reads cgroups.

    Args:
        proc: mount point of procfs.
        root: mount point of the cgroup file system(s).
    """

    def __init__(self, proc: Path, root: Path) -> None:
        self._proc = proc
        self._root = root

    def chain(self, pid: int) -> tuple[Group, ...]:
        """The process's own cgroup first, then its ancestors that are visible here."""
        own = procfs.text(self._proc / str(pid) / "cgroup")
        if own is None:
            return ()
        mount, inside, version = self._cpu_mount(own)
        if mount is None:
            return ()
        relative = Path(inside.lstrip("/"))
        if ".." in relative.parts:
            return ()
        if not (mount / relative).is_dir():
            # A container's mount starts at its own cgroup, while /proc names it from the host's root.
            if own != procfs.text(self._proc / "self" / "cgroup"):
                return ()
            relative = Path()
        below = [mount / relative, *(mount / parent for parent in relative.parents)] if relative.parts else [mount]
        return tuple(Group(path, version) for path in below)

    def read(self, group: Group) -> CgroupReading | None:
        """Throttling so far; None where the group has no CPU controller."""
        content = procfs.text(group.path / "cpu.stat")
        if content is None or "nr_periods" not in content:
            return None
        return cgroup_reading(str(group.path.relative_to(self._root)), content)

    def quota(self, group: Group) -> float | None:
        """CPUs' worth of time per period that the group may use; None without a limit."""
        if group.version == 2:
            words = (procfs.text(group.path / "cpu.max") or "").split()
        else:
            words = [(procfs.text(group.path / f"cpu.cfs_{name}_us") or "").strip() for name in ("quota", "period")]
        if len(words) < 2 or not words[0].isdigit() or not words[1].isdigit() or not int(words[1]):
            return None  # "max", and v1's -1
        return int(words[0]) / int(words[1])

    def pressure(self, group: Group | None) -> float | None:
        """Seconds in which a runnable task of the group (of the machine, for None or v1) waited for a CPU."""
        if group is not None and group.version == 2:
            seconds = pressure_seconds(procfs.text(group.path / "cpu.pressure") or "")
            if seconds is not None:
                return seconds
        return pressure_seconds(procfs.text(self._proc / "pressure" / "cpu") or "")

    def _cpu_mount(self, listing: str) -> tuple[Path | None, str, int]:
        """(mount point of the CPU controller, the process's path in it, version)."""
        unified = ""
        for line in listing.splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if "cpu" in controllers.split(","):
                mount = procfs.existing([self._root / controllers, self._root / "cpu,cpuacct", self._root / "cpu"])
                if mount is not None:
                    return mount, path, 1
            elif number == "0":
                unified = path
        if unified and (self._root / "cgroup.controllers").exists():
            return self._root, unified, 2
        return None, "", 0
