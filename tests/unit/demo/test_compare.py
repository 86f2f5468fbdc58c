from __future__ import annotations

from dcpstream_demo.compare import check_history, compare, content_hash


def test_equal_sets_have_no_difference_and_one_hash() -> None:
    left = {b"a": b"1", b"b": b"2"}
    result = compare(left, dict(reversed(left.items())))
    assert result.is_equal
    assert result.left_hash == result.right_hash == content_hash(left)
    assert (result.left_count, result.right_count, result.difference_count) == (2, 2, 0)


def test_every_difference_is_counted_and_the_first_are_described_in_order() -> None:
    left = {b"k%03d" % number: b"x" for number in range(40)}
    right = dict(left)
    right[b"k007"] = b"y"
    del right[b"k003"]
    right[b"k999"] = b"z"
    result = compare(left, right, limit=2)
    assert not result.is_equal
    assert result.difference_count == 3
    lines = [item.describe("bucket", "table") for item in result.first_differences]
    assert lines == ["k003: bucket x, table has no such document", "k007: bucket x, table y"]


def test_hash_tells_where_keys_end() -> None:
    assert content_hash({b"ab": b"c"}) != content_hash({b"a": b"bc"})


def test_replaying_changes_gives_the_state_whatever_order_they_lie_in() -> None:
    batches = [
        ([b"a", b"b"], [b"2", b"1"], [0, 1], [5, 1]),
        ([b"a", b"b", b"c"], [b"1", None, b"1"], [0, 1, 1], [4, 2, 3]),
    ]
    history = check_history(iter(batches))
    assert history.documents == {b"a": b"2", b"c": b"1"}
    assert history.row_count == 5
    assert history.repeated_count == 0


def test_repeated_rows_are_found() -> None:
    batch = ([b"a", b"b"], [b"1", b"1"], [0, 1], [5, 5])
    assert check_history(iter([batch, batch])).repeated_count == 2
