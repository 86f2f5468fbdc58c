"""Forms that send orders to the REST API; the script in `static/orders.js` sends them and shows the answer."""

from __future__ import annotations

from typing import NamedTuple

from dcpstream.pages.markup import text


class Field(NamedTuple):
    """A field with its label.

    Attributes:
        name: in the form.
        label: for people.
        value: that it has at first.
        kind: text, number or search.
        low, high: bounds of a number; None: no bound.
        choices: texts that are offered while people type.
        is_optional: an empty field is not sent.
    """

    name: str
    label: str
    value: str = ""
    kind: str = "text"
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    is_optional: bool = False

    def html(self) -> str:
        """The field."""
        bounds = "".join(
            f' {name}="{bound:g}"' for name, bound in (("min", self.low), ("max", self.high)) if bound is not None
        )
        step = ' step="any"' if self.kind == "number" else ""
        listed = f' list="list-{self.name}"' if self.choices else ""
        options = "".join(f'<option value="{text(choice)}"></option>' for choice in self.choices)
        offered = f'<datalist id="list-{self.name}">{options}</datalist>' if self.choices else ""
        optional = " data-optional" if self.is_optional else " required"
        return (
            f'<label>{text(self.label)}<input name="{self.name}" type="{self.kind}" value="{text(self.value)}"'
            f'{bounds}{step}{listed}{optional} autocomplete="off"></label>{offered}'
        )


def hidden(name: str, value: str) -> str:
    """A field that is not shown."""
    return f'<input type="hidden" name="{name}" value="{text(value)}">'


class Order(NamedTuple):
    """A form with one button.

    Attributes:
        action: path of the REST API, quoted.
        button: its text.
        fields: HTML.
        done: the text that is shown when the order was accepted.
        about: what the order is about, for people who hear the page.
        sure: a question that is asked first; such orders are marked as dangerous.
        method: of the request.
        kind: class of the button.
        joins: name of a field whose values are sent as one, with commas between them.
        leads_to: path of the page that follows.
        layout: row: the fields stand side by side; wide: below each other.
    """

    action: str
    button: str
    fields: str = ""
    done: str = ""
    about: str = ""
    sure: str = ""
    method: str = "POST"
    kind: str = ""
    joins: str = ""
    leads_to: str = ""
    layout: str = "row"

    def html(self) -> str:
        """The form."""
        marks = {
            "data-method": self.method,
            "data-done": self.done,
            "data-sure": self.sure,
            "data-list": self.joins,
            "data-next": self.leads_to,
        }
        said = "".join(f' {name}="{text(value)}"' for name, value in marks.items() if value)
        spoken = f'<span class="hidden"> {text(self.about)}</span>' if self.about else ""
        key = text(self.action + self.about + self.button)
        kind = self.kind or ("danger" if self.sure else "")
        return (
            f'<form class="order {self.layout}" method="post" action="{self.action}"{said} data-key="{key}">'
            f'{self.fields}<button class="{kind}">{text(self.button)}{spoken}</button></form>'
        )
