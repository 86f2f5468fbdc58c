from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.model import StreamOffset
from dcpstream.model.position_text import chain, chain_text, number, number_text
from tests.kit.cases import each_case


@given(st.integers(0, 2**64 - 1) | st.integers(0, 5000))
def test_numbers(value: int) -> None:
    assert number(number_text(value)) == value
    assert number_text(value) == number_text(value).lstrip("0") or value == 0


def test_a_purge_limit_stands_last() -> None:
    positions = (StreamOffset(1, 9, 5, 20, purge_limit=12), StreamOffset(1, 5, 0, 9, purge_limit=9))
    text = chain_text(positions, lambda names: 0)
    assert text == "1@9+b;^3;4.^4;"
    assert [one.purge_limit for one in chain(text)] == [12, 9]
    assert chain(text) == positions


def test_the_beginning_of_the_history_is_a_dot() -> None:
    assert chain_text((StreamOffset.ZERO,), lambda names: 0) == "."
    assert chain(".") == (StreamOffset.ZERO,)
    assert chain(chain_text((StreamOffset.ZERO.with_collections(()),), lambda names: 0), [()])[0].collections == ()


@each_case("text", ["1", "1@", "1@2", "1@2?x", "-1=", "1@2<3=", "A", "1@2+;", "1@2+3", "1@2=^1", "1@2=^;"])
def test_what_is_no_chain_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a|within|not above"):
        chain(text)
