"""The laws of the source: what breaks one, and what does not."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from lab.tools import laws


def breaches(tmp_path: Path, law: laws.Law, sources: dict[str, str]) -> list[tuple[str, int]]:
    """(module, line) of what a law finds in modules, given by their paths."""
    for name, text in sources.items():
        folder = name.partition("/")[0].replace("_", "-")
        path = tmp_path.joinpath("packages", folder, "src", f"{name}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), "utf-8")
    return [(breach.path.stem, breach.line) for breach in law(laws.modules(tmp_path))]


@pytest.mark.parametrize(
    "text",
    [
        "A = {Opcode.GET, Opcode.SET}",
        "A = frozenset((Opcode.GET, int(Opcode.SET)))",
        "A = frozenset((*(Opcode.GET, Opcode.SET),))",
        "A = {Opcode.GET: 1}",
        "A = dict.fromkeys([Opcode.GET], 1)",
        "A = (Opcode.GET, Opcode.SET)",
        "def f(x): return x in {Opcode.GET}",
        "_GET = int(Opcode.GET)\nA = {_GET}",
        "_GET, _SET = int(Opcode.GET), int(Opcode.SET)\nA = {_SET: 1}",
        "from dcpstream.wire.messages.dcp import Mutation\nA = {Mutation.layout.opcode}",
        "from dcpstream.wire.messages.dcp import Mutation as M\nA = {M: 1}",
        "from dcpstream.wire.messages import dcp\nA: tuple[type, ...] = (dcp.Mutation, dcp.Deletion)",
    ],
)
def test_opcodes_that_are_listed_by_hand(tmp_path: Path, text: str) -> None:
    law = laws.opcodes_are_listed_in_wire
    assert breaches(tmp_path, law, {"dcpstream_node/a": text, "dcpstream/wire/b": text}) == [
        ("a", len(text.splitlines()))
    ]


@pytest.mark.parametrize(
    "text",
    [
        "A = frozenset(layout.opcode for layout in REQUESTS if layout.flow_controlled)",
        "GET, SET = int(Opcode.GET), int(Opcode.SET)",
        "table.add((Opcode.SET, Opcode.ADD), store)",
        "def f(x): return x == Opcode.GET or x in (Opcode.SET, Opcode.ADD)",
        "A = {1: Opcode.GET}",
        "A = {Feature.JSON}",
    ],
)
def test_opcodes_that_are_not_a_list(tmp_path: Path, text: str) -> None:
    assert breaches(tmp_path, laws.opcodes_are_listed_in_wire, {"dcpstream_node/a": text}) == []


def test_parameters_are_counted_without_self(tmp_path: Path) -> None:
    text = """
        class A:
            def f(self, a, b, c, d, e, f, g, h): ...
            def g(self, a, b, c, d, *, e, f, g, h, i): ...
    """
    assert breaches(tmp_path, laws.functions_have_few_parameters, {"dcpstream_node/a": text}) == [("a", 4)]


def test_commands_may_have_any_number_of_parameters(tmp_path: Path) -> None:
    text = """
        @click.command("many")
        @click.option("--a")
        def many(a, b, c, d, e, f, g, h, i): ...
        @cached
        def more(a, b, c, d, e, f, g, h, i): ...
    """
    assert breaches(tmp_path, laws.functions_have_few_parameters, {"dcpstream_node/a": text}) == [("a", 6)]


def test_front_doors_are_configured_by_keyword(tmp_path: Path) -> None:
    options = "a, b, c=1, *, d=1, e=1, f=1, g=1, h=1, i=1"
    for parameters, is_allowed in (
        (options, True),
        (options.replace("i=1", "i"), False),
        (options.replace("c=1, *, d=1", "c, d, *"), False),
    ):
        text = f"class Node:\n    def __init__(self, {parameters}): ...\n    def other(self): ..."
        found = breaches(tmp_path, laws.functions_have_few_parameters, {"dcpstream_node/embedded": text})
        assert (found == []) is is_allowed
    text = f"class Node:\n    def start(self, {options}): ..."
    assert breaches(tmp_path, laws.functions_have_few_parameters, {"dcpstream_node/embedded": text}) == [
        ("embedded", 2)
    ]


def test_a_name_is_exported_for_one_class(tmp_path: Path) -> None:
    found = breaches(
        tmp_path,
        laws.public_names_are_unique,
        {
            "dcpstream/__init__": "from dcpstream.one import Thing\n__all__ = ['Thing']",
            "dcpstream/one/__init__": "from dcpstream.one.inner import Thing, Other\n__all__ = ['Thing', 'Other']",
            "dcpstream/two/__init__": "from dcpstream.two.inner import Other\n__all__ = [\n'Other',\n]",
        },
    )
    assert found == [("__init__", 3)]


def test_a_match_over_kinds_is_closed(tmp_path: Path) -> None:
    text = """
        def f(x):
            match x:
                case A(): return 1
                case B(): return 2
        def g(x):
            match x:
                case A(): return 1
                case _: return 2
        def h(x):
            match x:
                case Color.RED: return 1
                case _: assert_never(x)
        def i(x):
            match x:
                case A() | B(): return 1
                case _: raise TypeError
        def j(x):
            match x:
                case [1, y]: return y
                case "a": return 2
    """
    assert breaches(tmp_path, laws.matches_are_closed, {"dcpstream_node/a": text}) == [("a", 3), ("a", 7)]


def test_a_question_that_is_only_asked_in_a_loop(tmp_path: Path) -> None:
    machine = """
        class Session:
            @property
            def is_waiting(self) -> bool: ...
            def is_closing(self) -> bool: ...
            def next_timeout(self) -> float | None: ...
            def is_at(self, place: int) -> bool: ...
            def step(self) -> bytes: return b"" if self.is_closing() else b"x"
    """
    shell = """
        def run(session):
            while not session.is_waiting:
                if session.is_closing() or session.is_at(1): break
            at = session.next_timeout()
    """
    found = breaches(
        tmp_path,
        laws.machines_are_not_polled,
        {"dcpstream_node/engine/session": machine, "dcpstream_node/shell/loop": shell},
    )
    assert found == [("session", 4)]


def test_a_docstring_begins_with_its_subject(tmp_path: Path) -> None:
    text = '''
        """What the module is for."""
        LIMIT = 3
        """Of a bucket."""
        WIDTH = 4
        """Whether it is wide; of no use."""
        class A:
            """Offsets, one a row."""
            def f(self):
                """
                Which row it is.
                """
                return "How many?"
    '''
    law = laws.docstrings_name_their_subject
    assert breaches(tmp_path, law, {"dcpstream_node/a": text}) == [("a", 2), ("a", 4), ("a", 10)]


def test_names_are_terms_of_the_field(tmp_path: Path) -> None:
    text = """
        class LentMapping:
            def tell_nodes(self, hurry): self._owed = file.tell(); anewValue = [storyteller for storyteller in range(3)]
        FENCE_S = payload = besideways = 1.0
    """
    law = laws.identifiers_use_the_terms
    found = breaches(tmp_path, law, {"dcpstream_node/a": text})
    assert sorted(found) == [("a", 2), ("a", 3), ("a", 3), ("a", 3), ("a", 3), ("a", 4)]


def test_the_machines_are_packages_of_the_source() -> None:
    names = {module.name for module in laws.modules()}
    assert {*laws.MACHINES, laws.WIRE, laws.MESSAGES, *(door.rpartition(".")[0] for door in laws.FRONT_DOORS)} <= names


def test_a_breach_names_its_place_and_the_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    breaches(tmp_path, laws.opcodes_are_listed_in_wire, {"dcpstream_node/a": "A = {Opcode.GET}"})
    assert laws.main(tmp_path) == 1
    assert capsys.readouterr().out.startswith(
        "packages/dcpstream-node/src/dcpstream_node/a.py:1: opcodes_are_listed_in_wire: a list of opcodes"
    )
    breaches(tmp_path, laws.opcodes_are_listed_in_wire, {"dcpstream_node/a": "A = 1"})
    assert laws.main(tmp_path) == 0
