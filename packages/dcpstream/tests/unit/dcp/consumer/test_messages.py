"""The times of tombstones, and the counters of use, in the stored form of rows."""

from dcpstream.dcp.consumer.messages import Dialect, read_change, read_prepare
from dcpstream.wire import Opcode
from dcpstream.wire.messages.dcp import Mutation, Prepare
from tests.kit.cases import each_case
from tests.kit.lists import frame_of
from tests.kit.rules import rule

PLAIN = Dialect(datatypes=7)


def change_of(opcode, dialect=PLAIN, unix_s=99, **fields):
    return read_change(frame_of(opcode, vbid=3, opaque=7, **fields), dialect, unix_s)


@rule("CTL-14")
@each_case(("counter", "stored"), [(0, 3), (3, 3), (4, 2), (31, 2), (32, 1), (63, 1), (64, 0), (255, 0)])
def test_the_counter_that_came_is_exact_and_the_stored_one_coarse(counter, stored):
    extras = Mutation.layout.extras.pack(5, 1, 0, 0, 0, 0, counter)
    mutation = change_of(Opcode.DCP_MUTATION, key=b"k", cas=1, extras=extras)
    assert mutation.frame[Mutation.layout.offset("nru")] == stored
    extras = Prepare.layout.extras.pack(5, 1, 0, 0, 0, counter, 0, 1)
    prepare = read_prepare(frame_of(Opcode.DCP_PREPARE, key=b"k", cas=1, extras=extras), PLAIN)
    assert prepare.change.frame[Prepare.layout.offset("nru")] == stored
