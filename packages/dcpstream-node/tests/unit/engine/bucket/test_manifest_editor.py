"""The next manifest: ids are never given twice, what stays keeps its id, and names that cannot be are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.model import Manifest
from dcpstream.wire import Opcode
from dcpstream.wire.keys import leb128_encode
from dcpstream_node.engine.bucket.manifest import ManifestError
from dcpstream_node.engine.bucket.manifest_editor import ManifestEditor, NameMissingError, NameTakenError, Wanted
from dcpstream_node.store.items import PREPARE_NAMESPACE, SYSTEM_COLLECTION
from tests.kit.cases import each_case
from tests.kit.engine import Talker, engine_of

NAMES = st.sampled_from(["a", "b", "c"])
WHOLE = st.dictionaries(NAMES, st.dictionaries(NAMES, st.just(Wanted()), max_size=3), max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add_scope"), st.tuples(NAMES)),
        st.tuples(st.just("drop_scope"), st.tuples(NAMES)),
        st.tuples(st.just("add_collection"), st.tuples(NAMES, NAMES, st.just(Wanted()))),
        st.tuples(st.just("drop_collection"), st.tuples(NAMES, NAMES)),
        st.tuples(st.just("change_collection"), st.tuples(NAMES, NAMES, st.builds(Wanted, st.integers(0, 9)))),
        st.tuples(st.just("replace_all"), st.tuples(WHOLE)),
    ),
    max_size=25,
)


@given(STEPS)
def test_an_id_means_one_thing_for_ever(steps) -> None:
    manifest, meant = Manifest.DEFAULT, {}
    for name, arguments in steps:
        before = manifest
        try:
            manifest = getattr(ManifestEditor(before), name)(*arguments)
        except ManifestError:
            continue
        assert manifest.uid > before.uid
        alive = {("scope", scope.scope_id): scope.name for scope in manifest.scopes}
        alive |= {("item", item.collection_id): (scope.name, item.name) for scope, item in manifest.collections()}
        gone = {key for key in meant if key not in alive}
        for key, value in alive.items():
            assert meant.setdefault(key, value) == value, "an id was given twice"
        for key in gone:
            meant[key] = None


def test_what_stays_keeps_its_id_and_what_is_not_named_goes() -> None:
    first = ManifestEditor(Manifest.DEFAULT).replace_all({"s": {"a": Wanted(5), "b": Wanted()}, "t": {}})
    second = ManifestEditor(first).replace_all({"s": {"b": Wanted(7), "c": Wanted()}})
    assert [scope.name for scope in second.scopes] == ["_default", "s"]
    before = {item.name: item for item in first.scopes[1].collections}
    after = {item.name: item for item in second.scopes[1].collections}
    assert list(after) == ["b", "c"]
    assert after["b"].collection_id == before["b"].collection_id
    assert after["b"].max_ttl == 7
    assert after["c"].collection_id not in {item.collection_id for item in before.values()}
    assert second.scopes[0].collections == (), "the default collection was not named"
    kept = ManifestEditor(first).replace_all({"s": {}}, keeps_default_collection=False)
    assert kept.find("", "") is None
    assert ManifestEditor(Manifest.DEFAULT).replace_all({}, keeps_default_collection=True).find("", "") is not None


def test_history_is_kept_where_nothing_else_is_said() -> None:
    made = ManifestEditor(Manifest.DEFAULT, history=True).add_collection("_default", "a", Wanted())
    assert made.scopes[0].collections[1].history
    changed = ManifestEditor(made).change_collection("_default", "a", Wanted(3))
    assert changed.scopes[0].collections[1].history
    assert changed.scopes[0].collections[1].max_ttl == 3


@each_case(
    ("step", "arguments", "kind"),
    [
        ("add_scope", ("_default",), NameTakenError),
        ("add_scope", ("_system",), ManifestError),
        ("add_scope", ("%x",), ManifestError),
        ("add_scope", ("",), ManifestError),
        ("add_scope", ("a" * 252,), ManifestError),
        ("drop_scope", ("none",), NameMissingError),
        ("drop_scope", ("_default",), ManifestError),
        ("add_collection", ("none", "a", Wanted()), NameMissingError),
        ("add_collection", ("_default", "_default", Wanted()), NameTakenError),
        ("add_collection", ("_default", "a", Wanted(-2)), ManifestError),
        ("add_collection", ("_default", "a", Wanted(1 << 31)), ManifestError),
        ("change_collection", ("_default", "none", Wanted()), NameMissingError),
        ("change_collection", ("_default", "_default", Wanted(5)), ManifestError),
        ("drop_collection", ("_default", "none"), NameMissingError),
        ("replace_all", ({"s": {"_default": Wanted()}},), ManifestError),
        ("replace_all", ({"_mine": {}},), ManifestError),
    ],
)
def test_what_cannot_be(step: str, arguments: tuple, kind: type[ManifestError]) -> None:
    with pytest.raises(kind):
        getattr(ManifestEditor(Manifest.DEFAULT), step)(*arguments)


def test_a_default_collection_that_was_dropped_stays_away() -> None:
    dropped = ManifestEditor(Manifest.DEFAULT).drop_collection("_default", "_default")
    with pytest.raises(ManifestError):
        ManifestEditor(dropped).replace_all({"_default": {"_default": Wanted()}})


def test_collections_that_are_dropped_together_go_as_if_one_by_one() -> None:
    def left(together: bool) -> tuple[object, ...]:
        engine = engine_of(vbuckets=1)
        bucket = engine.buckets["default"]
        client = Talker(engine)
        log = bucket.vbuckets[0].log
        names = {f"c{number}": Wanted() for number in range(200)}
        engine.set_manifest(bucket, ManifestEditor(bucket.manifest).replace_all({"s": names, "t": {"kept": Wanted()}}))
        for _, item in list(bucket.manifest.collections())[::3]:
            for number in range(3):
                key = leb128_encode(item.collection_id) + b"k%d" % number
                assert client.call(Opcode.SET, key=key, value=b"v", extras=bytes(8)).status == 0
        if together:
            manifest = ManifestEditor(bucket.manifest).replace_all({"t": {"kept": Wanted()}})
            engine.set_manifest(bucket, manifest)
        else:
            for name in names:
                engine.set_manifest(bucket, ManifestEditor(bucket.manifest).drop_collection("s", name))
        rows = log.rows
        documents = {key for key in rows.keys if key[0] not in (SYSTEM_COLLECTION, PREPARE_NAMESPACE)}
        kept = next(item for _, item in bucket.manifest.collections() if item.name == "kept")
        key = leb128_encode(kept.collection_id) + b"k0"
        return documents, rows.item_count, client.call(Opcode.GET, key=key).status

    assert left(True) == left(False)


def test_the_systems_scope_stays_as_it_is() -> None:
    present = Manifest.WITH_SYSTEM_SCOPE
    for change, arguments in (
        ("drop_scope", ("_system",)),
        ("drop_collection", ("_system", "_query")),
        ("add_collection", ("_system", "mine", Wanted())),
        ("change_collection", ("_system", "_query", Wanted(5))),
    ):
        with pytest.raises(ManifestError):
            getattr(ManifestEditor(present), change)(*arguments)
    kept = ManifestEditor(present).replace_all({"a": {"b": Wanted()}, "_system": {"other": Wanted()}})
    assert kept.find_scope("_system") == present.find_scope("_system")
    assert {item.collection_id for _, item in kept.collections()} == {8, 9, 10}
    changed = ManifestEditor(present).change_collection("_system", "_query", Wanted(history=True))
    assert changed.find("_system", "_query") != present.find("_system", "_query")
