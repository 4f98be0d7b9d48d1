"""What is remembered of the addresses that are probed, for as long as the exporter runs: also over reloads.

A *server* has the lock and the token budget: never two probes at once, one budget an hour. A configured target is one server. A URL that
`/probe` was given shares the server of a target at the same scheme, host and port, or has one for all its paths: whoever spells an
address anew gets no second lock. A *place* has what holds for one address alone: tokenizer, model, and of each asker its pauses after
failures: two targets of one address may differ in credentials or TLS, so one that fails says nothing about the other.
Called by `probing/runner.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from llm_exporter.config.urls import Base, base_of
from llm_exporter.probing.manners import BackOff, BlindHeartbeats, TokenLedger
from llm_exporter.probing.prompts import TokenScale
from llm_exporter.sources.probe import TlsSettings

_MOST, _DROPPED = 2048, 64


@dataclass(slots=True)
class Server:
    """What all probes of one server share."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    ledger: TokenLedger = field(default_factory=TokenLedger)


class Asker(NamedTuple):
    """Who probes: a module of a target as it is configured now; with other TLS settings it is another one."""

    target: str
    tls: TlsSettings
    module: str


@dataclass(slots=True)
class Place:
    """What holds for one address; modules by name."""

    scales: dict[str, TokenScale] = field(default_factory=dict)  # by language
    back_off: dict[Asker, BackOff] = field(default_factory=dict)
    blind: dict[str, BlindHeartbeats] = field(default_factory=dict)
    last_run_at: dict[Asker, float] = field(default_factory=dict)  # monotonic seconds
    listed: bool = False  # /v1/models has answered; what it said is below
    model: str = ""
    context_tokens: int | None = None

    def scale(self, language: str) -> TokenScale:
        """What the server's tokenizer makes of our words in a language."""
        return self.scales.setdefault(language, TokenScale(language))


class Addresses:
    """All of them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: dict[Base, Server] = {}
        self._places: dict[Base, Place] = {}
        self._configured: dict[str, Base] = {}

    def configure(self, urls: Mapping[str, str]) -> frozenset[str]:
        """What is configured from now on, URL by target name; returns the names that had another address before."""
        configured = {name: base_of(url) for name, url in urls.items()}
        with self._lock:
            before, self._configured = self._configured, configured
        return frozenset(name for name, base in configured.items() if before.get(name, base) != base)

    def find(self, name: str, url: str) -> tuple[Server, Place]:
        """Server and place of a target, or of a URL that is none."""
        base = base_of(url)
        with self._lock:
            own = base if self._configured.get(name) == base else self._nearest(base)
            self._make_room()
            return self._servers.setdefault(own, Server()), self._places.setdefault(base, Place())

    def _nearest(self, base: Base) -> Base:
        """The known server of this origin whose path leads furthest towards `base`."""
        known = [other for other in (*self._configured.values(), *self._servers) if other.origin == base.origin]

        def leads(other: Base) -> int:
            return len(other.path) if f"{base.path}/".startswith(f"{other.path}/") else -1

        return max(known, key=leads, default=base._replace(path=""))

    def _make_room(self) -> None:
        """Forgets the oldest addresses that are not configured and idle, so that nobody can fill the memory through `/probe`."""
        kept = set(self._configured.values())
        if len(self._places) >= _MOST:
            for base in [base for base in self._places if base not in kept][:_DROPPED]:
                del self._places[base]
        if len(self._servers) >= _MOST:
            for base in [base for base, server in self._servers.items() if base not in kept and not server.lock.locked()][:_DROPPED]:
                del self._servers[base]
