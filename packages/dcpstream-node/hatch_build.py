"""Puts a copy of the rules' tests into the wheel, for `dcpstream judge --rules`.

In a checkout the tests are in tests/ of the whole project; in an sdist the copy is in shipped/.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PATTERNS = (
    "tests/conformance/*.py",
    "tests/conformance/kv_rules.tsv",
    "tests/data/recorded/rules.tsv",
    *(
        f"tests/kit/{name}.py"
        for name in (
            "__init__", "blocks", "cases", "client_machines", "fake_node", "lists", "messages", "recorded", "rules",
            "streams",
        )
    ),
)  # fmt: skip
"""What the tests of tests/conformance import, and their tables."""
PLACE = "dcpstream_node/rulebook/shipped"


class BookHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the files to sdist and wheel; an editable installation finds them in the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files. Raises: FileNotFoundError: there is neither a checkout nor an sdist."""
        if version == "editable":
            return
        here = Path(self.root)
        sources = [place for place in (here / "shipped", here.parents[1]) if (place / "tests" / "conformance").is_dir()]
        if not sources:
            raise FileNotFoundError(f"{here}: neither shipped/ nor a checkout around it has tests/conformance")
        place = "shipped" if self.target_name == "sdist" else PLACE
        for pattern in PATTERNS:
            for path in sorted(sources[0].glob(pattern)):
                build_data["force_include"][str(path)] = f"{place}/{path.relative_to(sources[0])}"
