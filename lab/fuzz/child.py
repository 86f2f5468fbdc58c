"""The search for one target, in a process of its own: `python -m lab.fuzz.child TARGET FOLDER [options of libFuzzer]`.

atheris adds to the functions of dcpstream, as they are imported, the calls that show libFuzzer which code runs. So
nothing of it may be imported before. libFuzzer ends the process when its time is over.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Fuzz until libFuzzer ends the process."""
    import atheris

    name, folder, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["dcpstream"]):
        target: Any = importlib.import_module(f"lab.fuzz.targets.{name}")
    from lab.fuzz import mutation
    from lab.fuzz.findings import Findings
    from lab.fuzz.targets import quiet

    quiet()
    findings = Findings(Path(folder) / "findings")
    check = target.check

    def test_one_input(data: bytes) -> None:
        try:
            check(data)
        except Exception as error:  # noqa: BLE001 - whatever comes out is a finding
            findings.add(data, error)

    more: dict[str, Any] = {}
    head = getattr(target, "FRAMES_AT", None)
    if head is not None:
        others = [piece for data in target.seeds() for piece in mutation.split(data[head:])]

        def mutate(data: bytes, max_bytes: int, seed: int) -> bytes:
            return mutation.mutated(data, max_bytes, seed, head=head, others=others, mutate=atheris.Mutate)

        more["custom_mutator"] = mutate
    # To choose the smallest corpus libFuzzer starts itself again, by a shell and its first argument.
    again = shlex.join([sys.executable, "-m", "lab.fuzz.child", name, folder])
    atheris.Setup([again, *options], test_one_input, **more)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
