"""The kept inputs of each target: one text file, one input on a line in Base64, with a reason behind it or none.

An input with a reason stays when the corpus is chosen again: it once broke a promise.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "tests" / "fuzz" / "corpus"

MAX_BYTES = 300_000
"""Size of all files together, so that a clone stays small and a replay short."""

_HEAD = "# Inputs of the fuzz target {name} in Base64, chosen by `python -m lab.fuzz {name} --keep`."


def path_of(name: str) -> Path:
    """The file of a target."""
    return FOLDER / f"{name}.txt"


def load(name: str) -> dict[bytes, str]:
    """Input → reason, empty if it has none; in the order of the file."""
    path = path_of(name)
    found: dict[bytes, str] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            text, _, reason = line.partition("#")
            if text.strip() or not line.startswith("#"):
                found[base64.b64decode(text.strip(), validate=True)] = reason.strip()
    return found


def save(name: str, inputs: Mapping[bytes, str]) -> None:
    """Write a target's file: those with a reason first, then the others by size."""
    ordered = sorted(inputs.items(), key=lambda item: (not item[1], len(item[0]), item[0]))
    lines = [base64.b64encode(data).decode() + (f"  # {reason}" if reason else "") for data, reason in ordered]
    FOLDER.mkdir(parents=True, exist_ok=True)
    path_of(name).write_text("\n".join([_HEAD.format(name=name), *lines, ""]), encoding="utf-8")


def fill(folder: Path, inputs: Iterable[bytes]) -> None:
    """Write inputs into a folder, one file each, as libFuzzer wants them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs):
        (folder / f"kept-{number:05}").write_bytes(data)
