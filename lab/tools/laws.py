"""Check the source against the project's laws: rules of its design that neither the linter nor the type checker knows.

    python lab/tools/laws.py

A breach is printed as `file:line: law: what to do`, and the exit status is 1. A further law is a function that takes
the modules and gives breaches, and an entry of `LAWS`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lab import layout

WIRE = "dcpstream.wire"
MESSAGES = f"{WIRE}.messages"
PARAMETERS_MAX = 8
FRONT_DOORS = (
    "dcpstream_node.embedded.Node",
    "dcpstream_node.cluster.cluster.Cluster",
    "dcpstream_spark.tables.pipeline.Pipeline",
)
"""Classes whose constructors may have any number of parameters: users configure them by keyword, and the defaults stand
in one place, the signature. All but the first `POSITIONAL_MAX` parameters are keywords with defaults."""
POSITIONAL_MAX = 3
MACHINES = ("dcpstream.dcp", "dcpstream.client.machine", "dcpstream_node.engine", "dcpstream_node.cluster.machine")
"""Packages whose classes are machines: they do no input or output."""


class Breach(NamedTuple):
    """A place that breaks a law, and the way out."""

    path: Path
    line: int
    advice: str


@dataclass(frozen=True)
class Module:
    """One module.

    Attributes:
        name: the dotted name, as code imports it.
        nodes: all nodes of the syntax tree.
        parents: node → the node around it.
    """

    path: Path
    name: str
    tree: ast.Module
    nodes: list[ast.AST]
    parents: dict[ast.AST, ast.AST]

    @classmethod
    def read(cls, path: Path, source: Path) -> Module:
        """The module in a file below a source folder."""
        tree = ast.parse(path.read_text("utf-8"), str(path))
        nodes, parents = list(ast.walk(tree)), {}
        for node in nodes:
            parents.update(dict.fromkeys(ast.iter_child_nodes(node), node))
        parts = path.relative_to(source).with_suffix("").parts
        return cls(path, ".".join(part for part in parts if part != "__init__"), tree, nodes, parents)

    def is_in(self, *packages: str) -> bool:
        """Whether one of these packages contains the module."""
        return any(f"{self.name}.".startswith(f"{package}.") for package in packages)

    def around(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """(node around, the part of it that holds `node`) from the inside out."""
        while node in self.parents:
            yield self.parents[node], node
            node = self.parents[node]


Law = Callable[[Sequence[Module]], Iterator[Breach]]


def modules(root: Path = layout.ROOT) -> list[Module]:
    """All modules of the packages."""
    return [Module.read(path, source) for source, path in layout.modules(root)]


# ----------------------------------------------------------------------------------------------------------- opcodes

_COLLECTIONS = ("dict", "frozenset", "fromkeys", "set")


def opcodes_are_listed_in_wire(found: Sequence[Module]) -> Iterator[Breach]:
    """No set or dictionary of opcodes, and no constant list of them, outside `wire`."""
    advice = (
        "a list of opcodes is kept by hand: derive it from an option of the messages (dcpstream.wire.messages), or "
        "enter functions with dcpstream.wire.by_message.ByMessage"
    )
    for module in found:
        if module.is_in(WIRE):
            continue
        names = _opcode_names(module)
        for node in module.nodes:
            if any(_is_opcode(each, names) for each in _collected(node, module)):
                yield Breach(module.path, getattr(node, "lineno", 0), advice)


def _collected(node: ast.AST, module: Module) -> Iterable[ast.expr]:
    """The members of a set, the keys of a dictionary, or the items of a constant of at least two."""
    match node:
        case ast.Set():
            return _flat(node.elts)
        case ast.Dict():
            return [key for key in node.keys if key is not None]
        case ast.Call() if node.args and _last_name(node.func) in _COLLECTIONS:
            items = node.args[0]
            return _flat(items.elts) if isinstance(items, ast.Tuple | ast.List) else ()
        case ast.Assign() | ast.AnnAssign() if isinstance(module.parents[node], ast.Module | ast.ClassDef):
            value, targets = node.value, node.targets if isinstance(node, ast.Assign) else [node.target]
            if isinstance(value, ast.Tuple | ast.List) and not isinstance(targets[0], ast.Tuple) and value.elts[1:]:
                return _flat(value.elts)
    return ()


def _flat(items: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """The items of tuples and lists that stand for their items, too."""
    for item in items:
        inner = item.value if isinstance(item, ast.Starred) else item
        if isinstance(inner, ast.Tuple | ast.List):
            yield from _flat(inner.elts)
        else:
            yield inner


def _opcode_names(module: Module) -> set[str]:
    """The names of a module that stand for one opcode: message classes, and constants."""
    names: set[str] = set()
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{MESSAGES}."):
            # The others are constants and structures without an opcode; of classes only messages occur in collections.
            names |= {alias.asname or alias.name for alias in node.names if alias.name[0].isupper()}
        elif isinstance(node, ast.Assign) and _is_opcode(node.value, names):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            for target in node.targets:
                pairs = zip(target.elts, node.value.elts, strict=False) if isinstance(target, ast.Tuple) else ()
                names |= {one.id for one, value in pairs if isinstance(one, ast.Name) and _is_opcode(value, names)}
    return names


def _is_opcode(node: ast.expr, names: set[str]) -> bool:
    """Whether the expression names one opcode, or the class of one message."""
    match node:
        case ast.Call(func=ast.Name("int"), args=[inner]):
            return _is_opcode(inner, names)
        case ast.Attribute(value=ast.Name("Opcode")) | ast.Attribute(value=ast.Attribute(attr="layout"), attr="opcode"):
            return True
        case ast.Attribute(value=ast.Name("admin" | "dcp" | "kv" | "subdoc"), attr=name):
            return name[0].isupper()
        case ast.Name(name):
            return name in names
    return False


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


# -------------------------------------------------------------------------------------------------------- interfaces


def functions_have_few_parameters(found: Sequence[Module]) -> Iterator[Breach]:
    """No function with more than `PARAMETERS_MAX` parameters; dataclasses have no function of their own.

    Commands are exempt, because their parameters are the options of a command line, and so are `FRONT_DOORS`.
    """
    for module in found:
        for node in module.nodes:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            positional, by_keyword = _parameters(node)
            count = positional + by_keyword
            if count > PARAMETERS_MAX and not _is_command(node) and not _is_front_door(node, module):
                advice = f"{node.name} has {count} parameters, more than {PARAMETERS_MAX}: group some in a dataclass"
                yield Breach(module.path, node.lineno, advice)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[int, int]:
    """The numbers of parameters that may be given by position, and by keyword only."""
    positional = [*node.args.posonlyargs, *node.args.args]
    return len(positional) - (positional[:1] != [] and positional[0].arg in ("self", "cls")), len(node.args.kwonlyargs)


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a decorator registers the function as a command, as `@click.command()` and `@group.command()` do."""
    return any(isinstance(each, ast.Call) and _last_name(each.func) == "command" for each in node.decorator_list)


def _is_front_door(node: ast.FunctionDef | ast.AsyncFunctionDef, module: Module) -> bool:
    """Whether this is the constructor of a front door, with keywords and defaults after the first parameters."""
    owner = module.parents[node]
    name = f"{module.name}.{owner.name}" if isinstance(owner, ast.ClassDef) else ""
    has_defaults = all(default is not None for default in node.args.kw_defaults)
    return name in FRONT_DOORS and node.name == "__init__" and _parameters(node)[0] <= POSITIONAL_MAX and has_defaults


def public_names_are_unique(found: Sequence[Module]) -> Iterator[Breach]:
    """A class that two packages export under one name is one class."""
    exported: dict[str, dict[str, tuple[Module, int]]] = defaultdict(dict)
    for module in found:
        if module.path.name == "__init__.py" and module.name.count(".") <= 1:
            for name, line in _all_of(module.tree):
                home = _home(module, name, found)
                if name[0].isupper() and not name.isupper():
                    exported[name].setdefault(home, (module, line))
    for name, homes in exported.items():
        for home, (module, line) in list(homes.items())[1:]:
            other = next(iter(homes))
            yield Breach(module.path, line, f"{name} of {home} is not {name} of {other}: rename one of them")


def _all_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and _last_name(node.targets[0]) == "__all__":
            assert isinstance(node.value, ast.List | ast.Tuple), "__all__ is a plain list"
            yield from ((str(item.value), item.lineno) for item in node.value.elts if isinstance(item, ast.Constant))


def _home(module: Module, name: str, found: Sequence[Module]) -> str:
    """The dotted name of the module that a package's name comes from, through other packages."""
    sources = [
        node.module
        for node in module.nodes
        if isinstance(node, ast.ImportFrom)
        and node.module
        and name in {alias.asname or alias.name for alias in node.names}
    ]
    if not sources:
        return module.name
    package = next((each for each in found if each.name == sources[0] and each.path.name == "__init__.py"), None)
    return sources[0] if package is None or package is module else _home(package, name, found)


# ---------------------------------------------------------------------------------------------------------- decisions


def matches_are_closed(found: Sequence[Module]) -> Iterator[Breach]:
    """A match over classes or members of an enumeration ends in `case _` with assert_never, or with an error."""
    for module in found:
        for node in module.nodes:
            if isinstance(node, ast.Match) and _is_over_kinds(node) and not _is_closed(node.cases[-1]):
                yield Breach(
                    module.path, node.lineno, "end the match with `case _:` and assert_never, or raise an error"
                )


def _is_over_kinds(node: ast.Match) -> bool:
    plain = (ast.MatchClass, ast.MatchValue, ast.MatchOr, ast.MatchAs)
    patterns = [case.pattern for case in node.cases if isinstance(case.pattern, plain)]
    return any(isinstance(inner, ast.MatchClass | ast.Attribute) for each in patterns for inner in ast.walk(each))


def _is_closed(case: ast.match_case) -> bool:
    is_any = isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None and case.guard is None
    last = case.body[-1]
    value = last.value if isinstance(last, ast.Expr | ast.Return) else None
    is_never = isinstance(value, ast.Call) and _last_name(value.func) == "assert_never"
    return is_any and (is_never or isinstance(last, ast.Raise))


def machines_are_not_polled(found: Sequence[Module]) -> Iterator[Breach]:
    """No question of a machine that others ask in loops only.

    A question is a public method or property without parameters that gives a bool or a time. It is polled if no machine
    asks it, and all who do stand in the test of a `while`, or of an `if` within one.
    """
    questions: dict[str, tuple[Module, int]] = {}
    uses: dict[str, list[bool]] = defaultdict(list)
    for module in found:
        is_machine = module.is_in(*MACHINES)
        for node in module.nodes:
            if is_machine and isinstance(node, ast.FunctionDef) and _is_question(node, module):
                questions[node.name] = module, node.lineno
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                uses[node.attr].append(not is_machine and _is_polling(node, module))
    for name, (module, line) in questions.items():
        if uses[name] and all(uses[name]):
            yield Breach(
                module.path, line, f"{name} is only polled in loops: return what to do from the call that decides"
            )


def _is_question(node: ast.FunctionDef, module: Module) -> bool:
    is_method = isinstance(module.parents[node], ast.ClassDef) and not node.name.startswith("_")
    has_parameters = len(node.args.args) > 1 or bool(node.args.kwonlyargs)
    answer = "" if node.returns is None else ast.unparse(node.returns)
    return is_method and not has_parameters and answer in ("bool", "float", "float | None")


def _is_polling(node: ast.AST, module: Module) -> bool:
    in_test = False
    for outer, part in module.around(node):
        if isinstance(outer, ast.If | ast.IfExp | ast.While) and outer.test is part:
            in_test = True
        if isinstance(outer, ast.While):
            return in_test
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            break
    return False


# -------------------------------------------------------------------------------------------------------------- words

QUESTIONS = ("How", "Of", "What", "Where", "Which")
"""Words that no docstring begins with: it begins with the noun or the verb that it is about."""
FOREIGN_WORDS = re.compile(
    "anew|besides?|fenc(e|es|ed|ing)|hurr(y|ies|ied|ying)|len(d|ds|t|ding)|mend(s|ed|ing)?|ow(e|es|ed|ing)|pa(y|ys|id|ying)"
    "|starv(e|es|ed|ing)|tell(s|ing)?|told"
)
"""Words that the field does not use for what its programs do: they report, repair, isolate, hasten and allocate."""
_PARTS = re.compile("[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def docstrings_name_their_subject(found: Sequence[Module]) -> Iterator[Breach]:
    """No docstring begins with one of `QUESTIONS`, also none after a constant."""
    for module in found:
        for node in module.nodes:
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))) if (word := _first_word(text)) in QUESTIONS:
                    advice = f"begin with the noun or the verb, not with {word!r}"
                    yield Breach(module.path, node.lineno, advice)


def _first_word(text: str) -> str:
    return "".join(text.split(maxsplit=1)[:1])


def identifiers_use_the_terms(found: Sequence[Module]) -> Iterator[Breach]:
    """No class, function, parameter, variable or attribute is named with one of `FOREIGN_WORDS`."""
    for module in found:
        for node in module.nodes:
            for part in _PARTS.findall(_defined(node)):
                if FOREIGN_WORDS.fullmatch(part.lower()):
                    advice = f"{_defined(node)}: {part!r} is no term of the field; use report, send, repair, isolate, …"
                    yield Breach(module.path, getattr(node, "lineno", 0), advice)


def _defined(node: ast.AST) -> str:
    """The name that a node defines; empty if it defines none."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
    return ""


# --------------------------------------------------------------------------------------------------------------- main

LAWS: tuple[Law, ...] = (
    docstrings_name_their_subject,
    identifiers_use_the_terms,
    opcodes_are_listed_in_wire,
    functions_have_few_parameters,
    machines_are_not_polled,
    matches_are_closed,
    public_names_are_unique,
)


def main(root: Path = layout.ROOT) -> int:
    """Print the breaches, and return the exit status."""
    found = modules(root)
    count = 0
    for law in LAWS:
        for breach in law(found):
            print(f"{breach.path.relative_to(root)}:{breach.line}: {law.__name__}: {breach.advice}")
            count += 1
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
