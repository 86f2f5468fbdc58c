"""The diagram of a producer stream's states is the code's."""

from pathlib import Path

from dcpstream.protocol.producer.stream import TRANSITIONS, StreamState

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "streams-and-snapshots.md"


def test_the_diagram_shows_the_transitions_of_the_code() -> None:
    drawn = "stateDiagram-v2\n" + "".join(
        f"    {state.name} --> {target.name}\n"
        for state in StreamState
        for target in StreamState
        if target in TRANSITIONS[state]
    )
    assert drawn in PAGE.read_text(encoding="utf-8")
