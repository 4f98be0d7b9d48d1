"""Replay: recordings through the same pipeline as the daemon's, on a clock of their own.

In: folders. Out: the exporter's page as it stood at the end. Nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_exporter.config.model import Config, Target
from llm_exporter.daemon.pipeline import Pipeline, Timing
from llm_exporter.daemon.published import declared, label_names
from llm_exporter.errors import UsageError
from llm_exporter.expose.page import Page
from llm_exporter.recording import Moment, Recording, read_recording

# Pages of a recording have no wall time: timestamps on the replayed page count from the recording's start.
EPOCH = 0.0


class Replay:
    """Several recordings side by side, each one target. `run` plays all of them to their ends."""

    def __init__(self, recordings: Sequence[Recording], config: Config) -> None:
        self.now = 0.0
        self.config = config
        names = [recording.name for recording in recordings]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"two folders are named {twice[0]!r}: targets are named after their folders, so rename one")
        settings = {target.name: target for target in config.targets}
        targets = [settings.get(name) or Target(name=name, url="http://recording.invalid") for name in names]
        self.page = Page(declared(), lambda: self.now)
        labels = label_names(targets)
        self.pipelines: Mapping[str, Pipeline] = {
            target.name: Pipeline(target, self.page, Timing(1.0, 1.0, config.stall.after), lambda: EPOCH + self.now, labels)
            for target in targets
        }
        self._moments = sorted(
            ((moment, recording.name) for recording in recordings for moment in recording.moments), key=lambda pair: pair[0].second
        )

    def step(self, moment: Moment, name: str) -> None:
        """Plays one scrape."""
        self.now = moment.second
        self.pipelines[name].take(moment.scraped, self.now)

    def run(self) -> Page:
        """Plays everything; returns the page, whose clock stands at each target's own end."""
        ends: dict[str, float] = {}
        for moment, name in self._moments:
            self.step(moment, name)
            ends[name] = moment.second
        # each recording is looked at as it stood at its own end: a shorter one has not gone silent
        for pipeline in self.pipelines.values():
            self.page.put(f"{pipeline.target.name}/engine", list(self.page.of(f"{pipeline.target.name}/engine")))
        return self.page


def replay(folders: Sequence[Path], config: Config) -> Replay:
    """Reads and plays the folders."""
    played = Replay([read_recording(folder) for folder in folders], config)
    played.run()
    return played
