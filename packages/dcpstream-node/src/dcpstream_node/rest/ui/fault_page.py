"""The content of the page of faults on demand: those that last, and a form for each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dcpstream.pages.forms import Field, Order
from dcpstream.pages.markup import Row, heads, number, section, table, text
from dcpstream.wire import Opcode, Status
from dcpstream_node.faults.fault import FIELDS, KINDS, FaultField, FaultKind
from dcpstream_node.rest.fault_pages import FAULTS

_LASTING = heads("Fault", "With", "#Acted", "-Order")
_ALL = "lift-all"


def fault_content(lasting: Sequence[Mapping[str, Any]], buckets: Sequence[str]) -> str:
    """The content.

    Args:
        lasting: the faults that last, as the REST API shows them.
        buckets: names that are offered.
    """
    rows = [_row(fault) for fault in lasting]
    lifts = (
        Order(FAULTS, "End all faults", method="DELETE", done="All faults are over.").html() if len(rows) > 1 else ""
    )
    nothing = "Nothing goes wrong on purpose."
    return "\n".join((table("lasting", "Faults that last", _LASTING, rows, nothing, note=lifts), _new(buckets)))


def _row(fault: Mapping[str, Any]) -> Row:
    number_of, kind = int(fault["id"]), str(fault["kind"])
    fields = [f"{FIELDS[name].label}: {value}" for name, value in fault.items() if name in FIELDS]
    end = Order(
        f"{FAULTS}/{number_of}", "End", method="DELETE", about=f"fault {number_of}", done="The fault is over."
    ).html()
    return Row(
        str(number_of),
        (text(kind.replace("_", " ")), text("; ".join(fields) or "any"), number(int(fault["hits"])), end),
    )


def _new(buckets: Sequence[str]) -> str:
    options = "".join(
        f'<option value="{name}" data-fields="{" ".join(kind.fields)}" data-needed="{" ".join(kind.needs)}" '
        f'data-about="{text(_sentence(kind))}">{name.replace("_", " ")}</option>'
        for name, kind in KINDS.items()
    )
    offered = {
        "opcode": tuple(sorted(Opcode.__members__)),
        "status": tuple(sorted(Status.__members__)),
        "bucket": tuple(buckets),
    }
    fields = "".join(_field(name, each, offered.get(name, ())) for name, each in FIELDS.items())
    choice = f'<label>What goes wrong<select name="kind" data-shows>{options}</select></label>'
    about = '<p class="note" data-about aria-live="polite"></p>'
    form = Order(FAULTS, "Let it go wrong", f"{choice}{about}{fields}", done="The fault is set.", kind="main").html()
    note = "Empty fields mean any, or no limit. The faults are for tests: clients meet them as if they were real."
    return section("new", "A new fault", form, note=note)


def _field(name: str, each: FaultField, choices: tuple[str, ...]) -> str:
    kind = "text" if each.low is None else "number"
    field = Field(name, each.label, kind=kind, low=each.low, high=each.high, choices=choices, is_optional=True)
    return f'<div data-field="{name}">{field.html()}</div>'


def _sentence(kind: FaultKind) -> str:
    until = "once, now" if kind.acts == "once" else "until it is ended or over"
    return f"{kind.about[0].upper()}{kind.about[1:]}; {until}."
