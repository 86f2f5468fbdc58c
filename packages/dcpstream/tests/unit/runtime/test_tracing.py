"""Spans where the program has loaded OpenTelemetry, and nothing where it has not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from dcpstream.runtime.tracing import Flow, span
from lab.tools.patience import patient
from tests.kit.spans import Spans, captured_spans


@pytest.fixture
def spans() -> Iterator[Spans]:
    with captured_spans() as found:
        yield found


def test_the_package_never_loads_it() -> None:
    program = (
        "import sys, dcpstream, dcpstream_node\n"
        "from dcpstream.client import KvClient\n"
        "from dcpstream.runtime.tracing import span\n"
        "with dcpstream_node.Node(vbuckets=1) as node:\n"
        "    with KvClient(node.connection_string, 'Administrator', 'password', 'default') as kv:\n"
        "        kv.set('key', '{}')\n"
        "    client = dcpstream.Client(node.connection_string, username='Administrator', password='password',"
        " bucket='default')\n"
        "    assert [each.key for each in client.changes(dcpstream.StreamOptions(end='latest'))][-1] == b'key'\n"
        "    client.close()\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=patient(60), check=True
    )
    assert done.stdout == "[]\n"


def test_spans_are_nested_and_have_attributes(spans: Spans) -> None:
    with span("outer", {"a": 1}) as outer, span("inner", {}, kind="consumer"):
        outer.set_attribute("b", "later")
    inner, found = spans.take()
    assert (found.name, dict(found.attributes), found.kind.name) == ("outer", {"a": 1, "b": "later"}, "CLIENT")
    assert (inner.parent.span_id, inner.kind.name) == (found.context.span_id, "CONSUMER")


def test_a_flow_is_never_the_current_span(spans: Spans) -> None:
    flow = Flow("stream", {})
    with flow.lasting():
        with span("of the user", {}):
            pass
        flow.step("step", {"n": 1}, start_ns=5)
    user, step, found = spans.take()
    assert user.parent is None
    assert (step.parent.span_id, step.start_time, dict(step.attributes)) == (found.context.span_id, 5, {"n": 1})
    assert found.status.status_code.name == "UNSET"
