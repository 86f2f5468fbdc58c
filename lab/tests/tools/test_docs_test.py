"""The count of blocks in the last line of `make docs-test`."""

from __future__ import annotations

from dataclasses import replace

from lab.tools.docs_test import WARNING, passed_blocks
from tests.kit.pages import parse

REPORT = """<testsuites><testsuite>
<testcase classname="lab.tests.docs.test_pages" name="a">
  <properties><property name="blocks" value="2"/></properties></testcase>
<testcase classname="lab.tests.docs.test_pages" name="b">
  <properties><property name="blocks" value="5"/></properties><failure/></testcase>
<testcase classname="packages.dcpstream-spark.tests.spark.test_typed_page" name="c"/>
<testcase classname="packages.dcpstream-spark.tests.spark.test_other" name="d"/>
<testcase classname="packages.dcpstream-spark.tests.spark.test_other" name="e"><skipped/></testcase>
</testsuite></testsuites>"""


def test_only_blocks_that_ran_and_passed_are_counted() -> None:
    (block,) = parse(
        "<!-- run by: packages/dcpstream-spark/tests/spark/test_typed_page.py -->\n```python\n```\n", "page.md"
    )
    assert passed_blocks(REPORT, []) == 2
    assert passed_blocks(REPORT, [block]) == 3
    assert passed_blocks(REPORT, [replace(block, argument="packages/dcpstream-spark/tests/spark/test_other.py")]) == 2
    assert passed_blocks(REPORT, [replace(block, argument="packages/dcpstream-spark/tests/spark/test_absent.py")]) == 2


def test_warnings_of_the_build_are_counted() -> None:
    assert len(WARNING.findall("INFO - x\nWARNING -  a\nINFO - no WARNING\nWARNING -  b\n")) == 2
