"""The protocol's numbers."""

from __future__ import annotations

from enum import IntFlag

from dcpstream.wire.codes import Datatype, MarkerFlag, OpenFlag, StreamFlag
from dcpstream.wire.stored.block import BlockKind
from tests.kit.cases import each_case


@each_case("kind", [Datatype, OpenFlag, StreamFlag, MarkerFlag, BlockKind])
def test_a_number_and_a_flag_make_a_plain_number(kind: type[IntFlag]) -> None:
    some = list(kind)
    everything = sum(some)
    for flag in some:
        assert type(everything & flag) is int
        assert everything & flag == flag
        assert everything - flag & flag == 0
        assert type(flag & kind(everything)) is kind
    assert type(everything & some[0] | some[1]) is kind
