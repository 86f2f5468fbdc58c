"""Settings of a bucket: limits, and what is kept of them with the store."""

import pytest

from dcpstream.errors import ConfigError
from dcpstream.model import BucketSettings, ConflictResolution, Persist
from dcpstream_node.store import DiskBucketStore
from tests.kit.cases import each_case


def test_settings_survive_their_text():
    settings = BucketSettings(persist=Persist.EVERY, conflict_resolution=ConflictResolution.LWW, max_ttl=60)
    assert BucketSettings.from_json(settings.to_json()) == settings


def test_settings_of_a_newer_version_are_ignored():
    assert BucketSettings.from_json({"replicas": 2, "colour": "red"}) == BucketSettings(replicas=2)


@each_case(
    ("name", "value"),
    [
        ("replicas", 4),
        ("ram_quota_bytes", 1),
        ("compression", "lz4"),
        ("compact_at", 0),
        ("max_ttl", "60"),
        ("flush_enabled", "no"),
        ("persist", "sometimes"),
    ],
)
def test_what_cannot_be_is_refused_with_the_name(name, value):
    with pytest.raises(ConfigError, match=name):
        BucketSettings(**{name: value})


def test_an_unknown_choice_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="none, group, every"):
        BucketSettings.from_json({"persist": "sometimes"})


def test_a_choice_may_be_given_by_its_text():
    made = BucketSettings(persist="every", conflict_resolution="lww")  # type: ignore[arg-type]
    assert made.persist is Persist.EVERY
    assert made.conflict_resolution is ConflictResolution.LWW


def test_settings_are_read_from_texts():
    made = BucketSettings.from_texts({"persist": "none", "max_ttl": "60", "flush_enabled": "true", "compact_at": "0.5"})
    assert made == BucketSettings(persist=Persist.NONE, max_ttl=60, flush_enabled=True, compact_at=0.5)


@each_case(("name", "text"), [("colour", "red"), ("max_ttl", "long"), ("flush_enabled", "perhaps")])
def test_texts_that_cannot_be_are_refused_with_the_name(name, text):
    with pytest.raises(ConfigError, match=name):
        BucketSettings.from_texts({name: text})


def test_a_store_keeps_the_settings_it_was_made_with(tmp_path):
    made = BucketSettings(replicas=1)
    DiskBucketStore(tmp_path, 1, made).close()
    with DiskBucketStore(tmp_path, 1, BucketSettings(replicas=2)) as store:
        assert store.settings == made
        store.settings = changed = BucketSettings(replicas=3)
    with DiskBucketStore(tmp_path, 1) as store:
        assert store.settings == changed
