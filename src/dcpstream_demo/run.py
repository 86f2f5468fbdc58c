"""A run of the demo, from the flights to the verdict."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dcpstream_demo import picture
from dcpstream_demo.bucket import Access, read_documents
from dcpstream_demo.display import Display
from dcpstream_demo.flights import Flight, change_count, final_state, find_file, read_flights
from dcpstream_demo.processes import Children
from dcpstream_demo.result import Result, judge
from dcpstream_demo.settings import Settings
from dcpstream_demo.stage import Stage, kill_points
from dcpstream_demo.watch import History


@dataclass(frozen=True, slots=True)
class Run:
    """One run; `play` does it all.

    Attributes:
        settings: what to do.
        display: where to show it.
        children: the processes; ended by who made it.
    """

    settings: Settings
    display: Display
    children: Children

    def play(self) -> Result:
        """Load, stream, kill, drain, compare, draw."""
        settings = self.settings
        settings.prepare()
        flights = self._read_flights()
        hold_at: list[int] = []
        if settings.kills:
            hold_at = kill_points(change_count(flights), random.Random(settings.seed))  # noqa: S311 - not a secret
        stage = Stage(settings, self.display, self.children, flights, hold_at)
        try:
            with self.display.bars():
                stage.open()
                if settings.kills:
                    stage.kill_query()
                    stage.kill_node()
                stage.drain()
        finally:
            stage.close()
        result = self._judge(flights, stage.node.access)
        stage.node.kill()
        self._draw(result, stage.history)
        return result

    def _read_flights(self) -> list[Flight]:
        path = self.settings.flights or find_file()
        flights = read_flights(path, self.settings.rows)
        self.display.say(f"{len(flights):,} flights read, {change_count(flights):,} changes in their lives")
        return flights

    def _judge(self, flights: list[Flight], access: Access) -> Result:
        keys = [flight.key for flight in flights]
        with self.display.bars():
            bucket = read_documents(access, keys, lambda count: self.display.bar("read the bucket", count, len(keys)))
            result = judge(final_state(flights), bucket, self.settings.tables, self.display.bar)
        for line in result.lines():
            self.display.line(line)
        return result

    def _draw(self, result: Result, history: History) -> None:
        carriers = picture.carrier_rows(result.documents.values())
        title = f"dcpstream demo: {result.verdict.removeprefix('verdict: ')}"
        path = picture.draw(self.settings.picture, history, carriers, title)
        self.display.say(f"picture: {path}")
