"""Settings of a bucket: limits, and what is kept of them with the store."""

import pytest

from dcpstream.errors import ConfigError
from dcpstream.model import BucketSettings
from dcpstream_node.store import DiskBucketStore
from tests.kit.cases import each_case


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
