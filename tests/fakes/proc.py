"""A machine made of files: /proc, /sys/fs/cgroup and /sys/devices/system/cpu below a temporary folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path


class FakeMachine:
    """Writes what the kernel would show; tests change it between ticks."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.cgroup = root / "cgroup"
        self.cpus = root / "cpu"
        for folder in (self.proc / "net", self.proc / "sys/kernel", self.proc / "pressure", self.cgroup, self.cpus):
            folder.mkdir(parents=True)
        (self.proc / "sys/kernel/hostname").write_text("node7\n")
        (self.proc / "self").mkdir()
        (self.cpus / "online").write_text("0-15\n")
        (self.proc / "net/if_inet6").write_text("")
        self._sockets: dict[str, list[str]] = {"tcp": [], "tcp6": []}
        self._write_sockets()
        self.addresses("10.0.0.5")
        self.process(1, 0, "systemd")

    def addresses(self, *addresses: str) -> None:
        lines = ["Main:", "  +-- 0.0.0.0/0 3 0 5"]
        for address in ("127.0.0.1", *addresses):
            lines += [f"     |-- {address}", "        /32 host LOCAL"]
        (self.proc / "net/fib_trie").write_text("\n".join(lines) + "\n")

    def listen(self, port: int, inode: int, address: str = "127.0.0.1") -> None:
        """A listening socket; who holds it is said by `process(sockets=…)`."""
        if ":" in address:
            words = "00000000" * 4 if address == "::" else "00000000" * 3 + "01000000"
        else:
            words = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
        table = self._sockets["tcp6" if ":" in address else "tcp"]
        table.append(f"   0: {words}:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 {inode} 1 0")
        self._write_sockets()

    def close(self) -> None:
        """No socket listens any more."""
        self._sockets = {"tcp": [], "tcp6": []}
        self._write_sockets()

    def _write_sockets(self) -> None:
        for name, lines in self._sockets.items():
            (self.proc / "net" / name).write_text("\n".join(["  sl  local_address …", *lines]) + "\n")

    def process(
        self,
        pid: int,
        parent: int,
        comm: str,
        command: str = "",
        *,
        sockets: tuple[int, ...] = (),
        started: int = 100,
        ticks: int = 0,
        state: str = "S",
        cpus: str = "0-15",
        cgroup: str = "0::/",
        readable: bool = True,
    ) -> None:
        """A process with its main thread."""
        folder = self.proc / str(pid)
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "task").mkdir(parents=True)
        (folder / "stat").write_text(self._stat(pid, parent, comm, ticks, started, state))
        (folder / "cmdline").write_text("\0".join(command.split()) + "\0" if command else "")
        (folder / "status").write_text(f"Name:\t{comm}\nCpus_allowed_list:\t{cpus}\n")
        (folder / "cgroup").write_text(cgroup + "\n")
        if readable:
            (folder / "fd").mkdir()
            for number, inode in enumerate(sockets):
                (folder / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
        self.thread(pid, pid, comm)

    def thread(self, pid: int, tid: int, comm: str, run: float = 0.0, wait: float = 0.0, *, schedstat: bool = True) -> None:
        """A thread with its seconds on a core and waiting for one."""
        folder = self.proc / str(pid) / "task" / str(tid)
        folder.mkdir(exist_ok=True)
        (folder / "comm").write_text(comm + "\n")
        (folder / "stat").write_text(self._stat(tid, 0, comm, round(run * 100), 100, "R"))
        if schedstat:
            (folder / "schedstat").write_text(f"{round(run * 1e9)} {round(wait * 1e9)} 17\n")
        else:
            (folder / "schedstat").unlink(missing_ok=True)

    def cpu_time(self, pid: int, parent: int, comm: str, seconds: float, started: int = 100) -> None:
        """CPU time of the whole process so far."""
        (self.proc / str(pid) / "stat").write_text(self._stat(pid, parent, comm, round(seconds * 100), started, "R"))

    def end(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))

    @staticmethod
    def _stat(pid: int, parent: int, comm: str, ticks: int, started: int, state: str) -> str:
        zeros = " 0" * 9
        return f"{pid} ({comm}) {state} {parent}{zeros} {ticks} 0 0 0 20 0 1 0 {started} 0 0\n"

    def pressure(self, seconds: float) -> None:
        (self.proc / "pressure/cpu").write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={seconds * 1e6:.0f}\n")

    def group(self, path: str, files: Mapping[str, str]) -> None:
        """Files of a cgroup."""
        folder = self.cgroup / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(content)
