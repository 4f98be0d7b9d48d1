"""Measures one server, or several side by side, over a ladder of prompt lengths, cold and warm: the work of `probe` and `compare`.

In: servers with their facts, a plan, the probe process. Out: a `Ladder` per server. Samples are interleaved and shuffled, so that a
drift of the machine hits all alike; the first requests to each server warm it up, teach the tokenizer's scale, and are not counted.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from llm_exporter.errors import SourceError, UsageError
from llm_exporter.probing.calls import CHAT, call_of
from llm_exporter.probing.pool import Prober
from llm_exporter.probing.prompts import PromptMaker, TokenScale, longest_prompt
from llm_exporter.probing.servers import ServerFacts
from llm_exporter.sources.probe import ProbeReading, TlsSettings

DEFAULT_LENGTHS = (2048, 4096, 8192, 16384, 32768)
_MOST_FAILURES_IN_A_ROW = 3


@dataclass(frozen=True, slots=True)
class Server:
    """One server to measure; headers may hold credentials and are never printed."""

    url: str
    facts: ServerFacts
    model: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: TlsSettings = field(default_factory=TlsSettings)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. `repeat` is samples per length and cache state; with `concurrency` above 1 each sample is that many at once."""

    prompt_tokens: tuple[int, ...]
    cache: tuple[str, ...] = ("cold", "warm")
    repeat: int = 5
    max_tokens: int = 8
    concurrency: int = 1
    endpoint: str = CHAT
    temperature: float = 0.0
    language: str = "en"
    timeout_seconds: float = 120.0
    seed: int | None = None


@dataclass(slots=True)
class Cell:
    """All samples of one length and cache state.

    A sample is the requests that were sent at once. They queue behind each other, so only samples are independent of each other, and
    statistics take one value of each.
    """

    prompt_tokens: int
    cache: str
    samples: list[list[ProbeReading]] = field(default_factory=list)

    @property
    def readings(self) -> list[ProbeReading]:
        """Each request."""
        return [reading for sample in self.samples for reading in sample]

    @property
    def good(self) -> list[ProbeReading]:
        """Those that succeeded."""
        return [reading for reading in self.readings if reading.success]

    @property
    def ttft_seconds(self) -> list[float]:
        """One per request, in the order in which they were sent."""
        return _ttft_of(self.readings)

    @property
    def sample_ttft_seconds(self) -> list[float]:
        """One per sample: the median of its requests."""
        return [statistics.median(times) for times in map(_ttft_of, self.samples) if times]

    @property
    def without_ttft(self) -> list[str]:
        """Why those that succeeded and have no time to first token have none, one reason per request; empty where it is not known."""
        return [reading.detail.partition(", so ")[0] for reading in self.good if reading.time_to_first_token_seconds is None]

    def lost(self, asked: int) -> dict[str, int]:
        """Of so many samples those without a time to first token, by what became of them."""
        untimed = [sample for sample in self.samples if not _ttft_of(sample)]
        found = Counter("without a time" if sample[0].success else sample[0].result for sample in untimed)
        return dict(found + Counter({"not sent": asked - len(self.samples)}))

    @property
    def counted_tokens(self) -> float | None:
        """Prompt length by the server's count; a count of 0 is none."""
        counts = [reading.prompt_tokens for reading in self.good if reading.prompt_tokens]
        return float(statistics.median(counts)) if counts else None

    @property
    def inter_token_seconds(self) -> list[float]:
        """One mean per request."""
        return [value for value in (reading.inter_token_seconds for reading in self.good) if value is not None]

    @property
    def results(self) -> dict[str, int]:
        """Count of each result."""
        return dict(Counter(reading.result for reading in self.readings))


def _ttft_of(readings: Iterable[ProbeReading]) -> list[float]:
    times = (reading.time_to_first_token_seconds for reading in readings if reading.success)
    return [value for value in times if value is not None]


@dataclass(frozen=True, slots=True)
class Ladder:
    """What was measured on one server."""

    server: Server
    plan: Plan
    cells: tuple[Cell, ...]

    def cell(self, prompt_tokens: int, cache: str) -> Cell | None:
        """The cell, where the plan has it."""
        return next((cell for cell in self.cells if (cell.prompt_tokens, cell.cache) == (prompt_tokens, cache)), None)


class EndedEarly(SourceError):
    """A server fails again and again, so the measurement was ended.

    Attributes:
        ladders: what was measured until then, one per server.
    """

    def __init__(self, reason: str, detail: str, ladders: Sequence[Ladder]) -> None:
        super().__init__(reason, detail)
        self.ladders = list(ladders)


def fitting_lengths(wanted: Sequence[int], context_tokens: int | None, max_tokens: int) -> tuple[int, ...]:
    """The lengths that the context holds.

    Where it cuts some off, its own limit takes their place; where it is below all of them, a ladder of quarters of the limit does.

    Raises:
        UsageError: nothing fits.
    """
    lengths, kept, limit = _split(wanted, context_tokens, max_tokens)
    if kept == lengths:
        return lengths
    if not kept:
        return tuple(sorted({max(1, limit * part // 4) for part in (1, 2, 3, 4)}))
    return kept if kept[-1] > 0.9 * limit else (*kept, limit)


def lengths_asked_for(wanted: Sequence[int], context_tokens: int | None, max_tokens: int) -> tuple[int, ...]:
    """Those of the lengths that somebody asked for that the context holds; no other length takes the place of one.

    Raises:
        UsageError: nothing fits.
    """
    lengths, kept, limit = _split(wanted, context_tokens, max_tokens)
    if not kept:
        raise UsageError(
            f"--prompt-tokens: {', '.join(map(str, lengths))} does not fit: the server's context of {context_tokens} tokens holds prompts"
            f" of up to {limit}; without the flag the ladder is chosen to fit"
        )
    return kept


def _split(wanted: Sequence[int], context_tokens: int | None, max_tokens: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """(lengths in order, those that the context holds, the longest that it holds). Without a context that is known, it holds all."""
    lengths = tuple(sorted(set(wanted)))
    if context_tokens is None:
        return lengths, lengths, max(lengths, default=0)
    limit = longest_prompt(context_tokens, max_tokens)
    if limit < 1:
        raise UsageError(f"the server's context of {context_tokens} tokens leaves no room for a prompt and {max_tokens} tokens of output")
    return lengths, tuple(length for length in lengths if length <= limit), limit


class LadderRun:
    """One measurement. Call `carry_out` once.

    Args:
        advance: called after each step with a short text, for a progress bar.
    """

    def __init__(self, servers: Sequence[Server], plan: Plan, prober: Prober, advance: Callable[[str], None] = lambda _: None) -> None:
        self._servers, self._plan, self._prober, self._advance = list(servers), plan, prober, advance
        self._chance = random.Random(plan.seed)  # noqa: S311  # order of samples, no secret
        self._maker = PromptMaker(plan.language)
        self._scales = [TokenScale(plan.language) for _ in servers]
        self._key = f"{self._chance.random()}"
        self._characters: dict[int, int] = {}
        self._failures = [0] * len(self._servers)  # samples in a row, of each server: a good one must not hide a dead one

    @property
    def steps(self) -> int:
        """How often `advance` will be called."""
        return len(self._servers) * (2 + len(self._plan.prompt_tokens) * len(self._plan.cache) * self._plan.repeat)

    def carry_out(self) -> list[Ladder]:
        """Measures.

        Raises:
            SourceError: a server does not answer its first request.
            EndedEarly: a server fails several times in a row.
        """
        plan = self._plan
        cells = [[Cell(length, cache) for length in plan.prompt_tokens for cache in plan.cache] for _ in self._servers]
        for number, server in enumerate(self._servers):
            for tokens in (min(64, plan.prompt_tokens[0]), min(1024, plan.prompt_tokens[-1])):
                reading = self._send(number, self._maker.cold(self._scales[number].characters(tokens)))
                if not reading.success:
                    raise SourceError(reading.result, f"{server.url}: the first request fails: {reading.detail}")
                self._advance("warming up")
        for round_number in range(plan.repeat):
            order = [(place, number) for place in range(len(cells[0])) for number in range(len(self._servers))]
            # places are shuffled, servers within a place too, but one place is measured on all servers back to back
            ranks = {place: self._chance.random() for place in range(len(cells[0]))}
            order.sort(key=lambda item: (ranks[item[0]], self._chance.random()))
            for place, number in order:
                cell = cells[number][place]
                sample = self._sample(number, cell, round_number)
                cell.samples.append(sample)
                self._failures[number] = 0 if any(reading.success for reading in sample) else self._failures[number] + 1
                if self._failures[number] >= _MOST_FAILURES_IN_A_ROW:
                    url, last = self._servers[number].url, sample[-1]
                    detail = f"{url}: {self._failures[number]} samples in a row failed: {last.detail or last.result}"
                    raise EndedEarly(last.result, detail, self._ladders(cells))
                self._advance(f"{cell.prompt_tokens} {cell.cache}")
        return self._ladders(cells)

    def _ladders(self, cells: Sequence[Sequence[Cell]]) -> list[Ladder]:
        return [Ladder(server, self._plan, tuple(row)) for server, row in zip(self._servers, cells, strict=True)]

    def _sample(self, number: int, cell: Cell, round_number: int) -> list[ProbeReading]:
        """One sample: as many requests at once as the plan's concurrency says."""
        characters = self._length_of(cell.prompt_tokens)
        if cell.cache == "warm":
            prompt = self._maker.warm(characters, self._key)
            prompts = [prompt] * self._plan.concurrency
            primer = self._send(number, prompt)
            if not primer.success:
                return [primer]
        else:
            # the words are the same on each server, the opening is not: two names of one server must not warm each other
            seeds = [f"{self._key} {cell.prompt_tokens} {round_number} {place}" for place in range(self._plan.concurrency)]
            prompts = [self._maker.cold(characters, seed) for seed in seeds]
        if len(prompts) == 1:
            return [self._send(number, prompts[0])]
        with ThreadPoolExecutor(len(prompts)) as threads:
            return list(threads.map(lambda prompt: self._send(number, prompt), prompts))

    def _length_of(self, tokens: int) -> int:
        """Characters of every prompt of this length: settled once, so that all samples and all servers get the same text.

        Of several tokenizers the one that makes most tokens of it decides, so that the prompt fits everywhere.
        """
        if tokens not in self._characters:
            self._characters[tokens] = min(scale.characters(tokens) for scale in self._scales)
        return self._characters[tokens]

    def _send(self, number: int, prompt: str) -> ProbeReading:
        server, plan = self._servers[number], self._plan
        reading = self._prober.measure(
            call_of(
                server.url,
                plan.endpoint,
                model=server.model,
                prompt=prompt,
                max_tokens=plan.max_tokens,
                temperature=plan.temperature,
                engine=server.facts.engine,
                headers=server.headers,
                tls=server.tls,
                timeout_seconds=plan.timeout_seconds,
            )
        )
        if reading.prompt_tokens:
            self._scales[number].learn(len(prompt), reading.prompt_tokens)
        return reading
