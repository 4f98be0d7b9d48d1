"""The table of docs/simulation.md: signal against truth, scenario by scenario.

`python -m llm_exporter.daemon.truth_table` plays all scenarios and writes the table between its two marks; `--check` says whether it is up
to date.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from llm_exporter.daemon.rehearsal import SCRAPE_SECONDS, STALL_AFTER, Rehearsal
from llm_exporter.daemon.yardsticks import ENGINES, YARDSTICKS, healed_at, is_trouble, last_tick, named_after, recovered_after
from llm_exporter.demo.scenarios import SCENARIOS

DOCUMENT = Path("docs/simulation.md")
BEGIN, END = "<!-- begin: signal against truth -->", "<!-- end: signal against truth -->"
INTRODUCTION = f"""\
Made by `python -m llm_exporter.daemon.truth_table`: each scenario played on its own clock through the whole pipeline, scraped every
{SCRAPE_SECONDS} s, `stall.after` {STALL_AFTER:.0f} s. Cells are *signal / truth* of the minute that ends with the trouble (`healthy`: with
the scenario); times in seconds, – is absent. *Named after* counts from the start of the trouble, *quiet again after* from when it is really
over: its end, or when the queue that it left is gone. A hung engine's gauges stand still, so `stalled` shows the queue of before.
SGLang has no decode time of its own: it is a difference, absent (status skewed) while a queue grows.
"""

_SHOWN = ("queue time", "prefill time", "decode time", "hit ratio", "GPU gap", "generated tokens/s", "waiting")


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if abs(value) >= 100 or value == round(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"


def row(play: Rehearsal, name: str, engine: str) -> str:
    """One line of the table: a scenario that was played on an engine."""
    phase = next((phase for phase in play.phases if is_trouble(phase)), play.phases[-1])
    tick = last_tick(play, phase)
    sticks = {stick.title: stick for stick in YARDSTICKS[engine]}
    cells = [f"{_number(sticks[title].signal(play, tick))} / {_number(sticks[title].truth(play, tick))}" for title in _SHOWN]
    if not is_trouble(phase):
        return f"| {name} | {engine} | {' | '.join(cells)} | {tick.verdict} | – | – |"
    healed, recovered = healed_at(play, phase), recovered_after(play, phase)
    after = (
        "never"
        if recovered is None
        else f"{recovered:.0f} s" + (f" (healed {healed - phase.end:.0f} s after)" if healed > phase.end else "")
    )
    named = named_after(play, phase)
    return f"| {name} | {engine} | {' | '.join(cells)} | {tick.verdict} | {'never' if named is None else f'{named:.0f} s'} | {after} |"


def table() -> str:
    """The table as Markdown, with what it means. Plays every scenario but the tour, which has the same troubles."""
    head = ["scenario", "engine", *_SHOWN, "verdict", "named after", "quiet again after"]
    rows = [row(Rehearsal(SCENARIOS[name], engine).run(), name, engine) for name in SCENARIOS if name != "tour" for engine in ENGINES]
    return "\n".join((INTRODUCTION, f"| {' | '.join(head)} |", "|" + "---|" * len(head), *rows))


def with_table(document: str, made: str) -> str:
    """The document with the table between its marks; raises ValueError where there are none."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{DOCUMENT}: needs the marks {BEGIN} and {END}, each on a line of its own")
    return f"{before}{begin}\n{made}\n{end}{after}"


def _differences(document: str, wanted: str) -> Iterator[str]:
    return difflib.unified_diff(document.splitlines(), wanted.splitlines(), f"{DOCUMENT} (on disk)", "(made)", lineterm="", n=0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes or checks; the exit code says whether the document was up to date."""
    parser = argparse.ArgumentParser(prog="python -m llm_exporter.daemon.truth_table", description="Signal against truth per scenario.")
    parser.add_argument("--check", action="store_true", help="write nothing; print what differs and exit with 1")
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    given = parser.parse_args(arguments)
    document = given.document.read_text(encoding="utf-8")
    wanted = with_table(document, table())
    if given.check:
        differences = "\n".join(_differences(document, wanted))
        if differences:
            sys.stdout.write(f"{differences}\n")
        return 1 if differences else 0
    given.document.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
