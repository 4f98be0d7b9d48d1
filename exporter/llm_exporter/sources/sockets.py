"""Whose socket listens on a target's port: from procfs alone, without asking anybody on the network.

Used by `processes.py`. A listening socket has an inode in /proc/net/tcp; the process that holds it has a link to that
inode among its descriptors.
"""

# ruff: noqa: PTH115, PTH208  os functions are several times cheaper than Path, and run per descriptor
from __future__ import annotations

import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from llm_exporter.sources import procfs

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_LISTEN = "0A"
_LISTEN_COLUMN = f" {_LISTEN} "  # most lines are connections: not worth splitting
# They hold the port for somebody in another network namespace, or for many: the engine is not behind them.
_PROXIES = frozenset({"docker-proxy", "rootlessport", "slirp4netns", "pasta", "pasta.avx2", "conmon"})


class Listener(NamedTuple):
    """A listening TCP socket."""

    address: Address
    port: int
    inode: str


def listeners(proc: Path) -> list[Listener]:
    """All listening TCP sockets of our network namespace."""
    found = []
    for name in ("tcp", "tcp6"):
        for line in (procfs.text(proc / "net" / name) or "").splitlines()[1:]:
            if _LISTEN_COLUMN not in line:
                continue
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTEN and fields[9] != "0":
                host, _, port = fields[1].rpartition(":")
                found.append(Listener(_from_hex(host), int(port, 16), fields[9]))
    return found


def own_addresses(proc: Path) -> frozenset[Address]:
    """Addresses of this network namespace's interfaces."""
    found: set[Address] = set()
    candidate = ""
    for line in (procfs.text(proc / "net" / "fib_trie") or "").splitlines():
        word = line.strip()
        if word.startswith("|--"):
            candidate = word[3:].strip()
        elif "host LOCAL" in word and candidate:
            found.add(ipaddress.ip_address(candidate))
    for line in (procfs.text(proc / "net" / "if_inet6") or "").splitlines():
        found.add(ipaddress.IPv6Address(bytes.fromhex(line.split()[0])))
    return frozenset(found)


class Owners:
    """Which processes hold a socket. Looks at each process once per socket: descriptors are many."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._held: dict[str, dict[int, int]] = {}  # inode → pid → started
        self._looked: dict[str, dict[int, int]] = {}
        self._refused: dict[str, bool] = {}

    def look(self, inodes: frozenset[str], table: Mapping[int, procfs.Stat]) -> None:
        """Learn who holds these sockets, and forget all others."""
        for gone in [inode for inode in self._looked if inode not in inodes]:
            del self._looked[gone], self._held[gone], self._refused[gone]
        for inode in inodes:
            self._look_for(inode, table)

    def of(self, inodes: frozenset[str], table: Mapping[int, procfs.Stat]) -> tuple[set[int], bool]:
        """(pids that hold one of these sockets, whether some process might hold it but may not be looked at)."""
        pids = {
            pid
            for inode in inodes
            for pid, started in self._held[inode].items()
            if pid in table and table[pid].started == started and table[pid].comm not in _PROXIES
        }
        return pids, not pids and any(self._refused[inode] for inode in inodes)

    def _look_for(self, inode: str, table: Mapping[int, procfs.Stat]) -> None:
        looked, held = self._looked.setdefault(inode, {}), self._held.setdefault(inode, {})
        self._refused[inode] = False
        for pid, stat in table.items():
            if looked.get(pid) == stat.started:
                continue
            links = self._links(pid)
            if links is None:
                self._refused[inode] = True
                continue
            looked[pid] = stat.started
            if f"socket:[{inode}]" in links:
                held[pid] = stat.started
        for pid in [pid for pid in looked if pid not in table]:
            del looked[pid]
            held.pop(pid, None)

    def _links(self, pid: int) -> set[str] | None:
        """Targets of a process's descriptors; None where we may not look."""
        folder = f"{self._proc}/{pid}/fd"
        try:
            names = os.listdir(folder)
        except PermissionError:
            return None
        except OSError:
            return set()
        links = set()
        for name in names:
            try:
                links.add(os.readlink(f"{folder}/{name}"))
            except OSError:  # closed meanwhile
                continue
        return links


class Names:
    """Addresses of host names, looked up beside the reader's thread: a broken name server must not make readings late.

    Args:
        resolve: name → addresses; may block and raise OSError.
        keep_seconds: how long an answer, or a failure, is good.
    """

    def __init__(self, resolve: Callable[[str], list[str]] | None = None, *, keep_seconds: float = 300.0) -> None:
        self._resolve = resolve or _system_resolve
        self._keep_seconds = keep_seconds
        self._known: dict[str, tuple[float, frozenset[Address]]] = {}
        self._running: dict[str, threading.Thread] = {}

    def addresses(self, host: str, now: float) -> frozenset[Address]:
        """Addresses as far as they are known now; a literal is its own address."""
        try:
            return frozenset({ipaddress.ip_address(host.strip("[]"))})
        except ValueError:
            pass
        if host == "localhost" or host.endswith(".localhost"):
            return frozenset({ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")})
        at, addresses = self._known.get(host, (float("-inf"), frozenset()))
        if now - at > self._keep_seconds and host not in self._running:
            self._known[host] = (now, addresses)
            thread = threading.Thread(target=self._look_up, args=(host, now), name=f"resolve-{host}", daemon=True)
            self._running[host] = thread
            thread.start()
        return self._known[host][1] if host in self._known else frozenset()

    @property
    def pending(self) -> bool:
        """Whether an answer is on its way."""
        return bool(self._running)

    def _look_up(self, host: str, now: float) -> None:
        try:
            addresses = frozenset(ipaddress.ip_address(text.partition("%")[0]) for text in self._resolve(host))
            self._known[host] = (now, addresses)
        except (OSError, ValueError, UnicodeError):
            self._known[host] = (now - self._keep_seconds + 30.0, frozenset())  # ask again in half a minute
        finally:
            self._running.pop(host, None)


def _system_resolve(host: str) -> list[str]:
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


def matches(listener: Listener, addresses: frozenset[Address], port: int) -> bool:
    """Whether a connection to one of these addresses and this port reaches the socket."""
    if listener.port != port:
        return False
    address = listener.address
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_unspecified or address in addresses or mapped in addresses


def _from_hex(text: str) -> Address:
    """Address in the kernel's notation: 32-bit words, each in the machine's byte order (little-endian here)."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    return ipaddress.ip_address(b"".join(words))
