"""The diagram of a consumer stream's states is the code's."""

from pathlib import Path

from dcpstream.protocol.consumer.stream import TABLE, ConsumerState, StreamEvent

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "replication.md"


def test_the_diagram_shows_the_table_of_the_code() -> None:
    lines = [
        f"    {state.name} --> {TABLE[state, event].name}: {event.value}\n"
        for state in ConsumerState
        for event in StreamEvent
        if (state, event) in TABLE and state is not ConsumerState.DEAD
    ]
    drawn = "stateDiagram-v2\n" + "".join(lines)
    assert drawn + "```" in PAGE.read_text(encoding="utf-8")


def test_nothing_wakes_the_dead() -> None:
    assert all(after is ConsumerState.DEAD for (before, _), after in TABLE.items() if before is ConsumerState.DEAD)
