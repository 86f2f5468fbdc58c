"""The pages of nodes and of pipelines in a real browser: what its scripts do, and whether everybody can use it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from dcpstream.client import Client
from dcpstream.client.kv.client import KvClient
from dcpstream.model import vbucket_of_key
from dcpstream_node import Cluster, Node
from dcpstream_spark.tables import Monitor
from dcpstream_spark.tables.progress import RollbackReport
from tests.kit.accessibility import complaints
from tests.kit.browser import NARROW, WHY_SKIPPED, WIDE, WIDEST, Browser, browser_path, browsing
from tests.kit.pretended_pipeline import PretendedPipeline
from tests.kit.rest import ask
from tests.kit.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(browser_path() is None, reason=WHY_SKIPPED),
    pytest.mark.xdist_group("browser"),  # one start for all
]

SIZES = (NARROW, WIDE, WIDEST)
HAS_PLOT = "document.querySelector('.plot svg path')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as made:
        yield made.log_in("Administrator", "password")


@pytest.fixture
def tab(browser: Browser) -> Iterator[Browser]:
    """The browser's tab; no script may have failed in it."""
    browser.look()
    yield browser
    leave(browser)
    problems, dialogs = list(browser.problems), browser.dialogs
    browser.problems.clear()
    dialogs.clear()
    assert problems == []


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(("travel", "shop"), vbuckets=8) as made:
        yield made


def address(node: Node, path: str = "/") -> str:
    return f"http://127.0.0.1:{node.mgmt_port}{path}"


def login(node: Node, bucket: str = "travel") -> dict[str, Any]:
    return {"username": node.username, "password": node.password, "bucket": bucket}


def leave(tab: Browser) -> None:
    """Leave a page before its server ends."""
    tab.open("data:text/html,")


def is_shown(selector: str) -> str:
    return f"document.querySelector('{selector}')?.checkVisibility()"


def test_the_page_stays_fresh_and_says_in_red_when_the_node_is_gone(tab: Browser, node: Node) -> None:
    tab.open(address(node))
    assert tab.evaluate("location.pathname") == "/ui"
    tab.wait_for(HAS_PLOT)
    with KvClient(node.connection_string, **login(node)) as kv:
        kv.set("k", b"{}")
    tab.wait_for("document.querySelector('.tile .value').innerText === '1'")
    tab.evaluate("document.querySelector('#buckets .sort').focus()")
    node.stop()
    tab.wait_for(is_shown("#gone"))
    assert tab.text("#gone").startswith("The node does not answer. The figures are of ")
    red, green, blue = tab.evaluate(
        "getComputedStyle(document.getElementById('gone')).backgroundColor.match(/\\d+/g).map(Number)"
    )
    assert red > 150 > 2 * max(green, blue) - 60, "red"
    assert tab.evaluate("document.title").startswith("\u26a0")
    tab.problems.clear()  # the browser's own words about requests that nobody answered
    node.start()
    tab.wait_for(f"!{is_shown('#gone')}")
    tab.problems.clear()
    assert not tab.evaluate("document.title").startswith("\u26a0")
    assert tab.evaluate("document.activeElement.textContent") == "Bucket", "the focus stayed"


def test_tables_are_sorted_and_filtered_and_stay_so(tab: Browser, node: Node) -> None:
    for number in range(5):
        node.create_bucket(f"b{number}")
    with KvClient(node.connection_string, **login(node, "b3")) as kv:
        kv.set("k", b"{}")
    tab.open(address(node, "/ui"))
    names = "[...document.querySelectorAll('#buckets tbody tr:not([hidden]) th a')].map((a) => a.innerText)"
    everything = ["travel", "shop", "b0", "b1", "b2", "b3", "b4"]
    assert tab.evaluate(names) == everything
    head = "[...document.querySelectorAll('#buckets .sort')].find((one) => one.innerText === '{}')"
    tab.evaluate(f"{head.format('Documents')}.focus()")
    tab.press("Enter")
    assert tab.evaluate(names) == ["b3", *[name for name in everything if name != "b3"]], "the largest first"
    assert tab.evaluate(f"{head.format('Documents')}.parentElement.ariaSort") == "descending"
    tab.evaluate(f"{head.format('Bucket')}.click()")
    assert tab.evaluate(names) == sorted(everything)
    tab.evaluate("document.querySelector('#buckets .filter input').focus()")
    tab.call("Input.insertText", text="B2")
    assert tab.evaluate(names) == ["b2"]
    node.create_bucket("b22")
    tab.wait_for(f'JSON.stringify({names}) === \'["b2","b22"]\'')
    assert tab.evaluate("document.activeElement.value") == "B2", "what was typed stays"


def complaints_of(tab: Browser, pages: Iterable[str], *, is_dark: bool) -> dict[str, list[str]]:
    """The errors of pages on screens of all sizes, by page and size; empty if there are none."""
    found = {}
    for page in pages:
        for size in SIZES:
            tab.look(size, is_dark=is_dark)
            tab.open(page)
            tab.wait_for(f"!document.querySelector('.plot') || {HAS_PLOT}")
            if errors := complaints(tab):
                found[f"{page} at {size[0]} px"] = errors
    leave(tab)
    return found


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("document.documentElement.removeAttribute('lang')", "html-has-lang"),
        ("document.querySelector('h1').style.color = '#999'", "color-contrast"),
        ("document.querySelector('main').insertAdjacentHTML('beforeend', '<input>')", "label"),
        ("document.querySelector('main').outerHTML = '<div><h1>Node</h1></div>'", "landmark-one-main"),
        ("document.querySelector('h2').outerHTML = '<h4>Buckets</h4>'", "heading-order"),
        ("document.querySelector('h1').style.minWidth = '2000px'", "the page is"),
        ("document.querySelector('table').removeAttribute('role')", "a table loses its role"),
    ],
)
def test_the_judge_of_pages_finds_a_planted_fault(tab: Browser, node: Node, fault: str, rule: str) -> None:
    tab.open(address(node, "/ui"))
    tab.wait_for(HAS_PLOT)
    tab.evaluate("window.fetch = () => new Promise(() => {})")  # the page is not loaded again
    tab.evaluate(f"{{ {fault} }}")
    assert any(error.startswith(rule) for error in complaints(tab))


@pytest.mark.slow
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_everybody_can_use_every_page(tab: Browser, is_dark: bool) -> None:
    with Cluster(nodes=3, replicas=1, buckets=("travel", "shop"), vbuckets=8, development=True) as cluster:
        node = cluster.nodes[0].node
        with (
            KvClient(node.connection_string, **login(node)) as kv,
            Client(node.connection_string, **login(node)) as client,
        ):
            kv.set("k", b"{}")
            changes = client.changes()
            next(changes)
            assert node.engine is not None
            ask(node, "POST", "/_dcpstream/faults", {"kind": "delay", "delay_s": "0.01", "connection": "nobody"})
            refusal = {"kind": "refuse", "status": "TMPFAIL", "connection": "nobody"}
            ask(node, "POST", "/_dcpstream/faults", refusal)
            connections = node.engine.buckets["travel"].dcp_sessions
            kinds = {session.dcp.__class__: name for name, session in connections.items() if "control" not in name}
            documents = "/ui/buckets/travel/documents/_default/_default"
            paths = (
                "/ui",
                "/ui/cluster",
                "/ui/faults",
                "/ui/buckets/travel?vbucket=1",
                documents,
                f"{documents}/k",
                *(f"/ui/buckets/travel/readers/{quote(name, safe='')}" for name in kinds.values()),
            )
            owner = cluster.node(str(cluster.chains("travel")[vbucket_of_key(b"k", 8)][0])).node
            pages = [address(owner if path.startswith(documents) else node, path) for path in paths]
            pages.append(address(node, "/ui/buckets/gone"))
            found = complaints_of(tab, pages, is_dark=is_dark)
        tab.problems.clear()  # the browser notes the answer 404
        assert found == {}


@pytest.mark.slow
def test_the_keyboard_reaches_everything_in_order(tab: Browser, node: Node) -> None:
    tab.open(address(node, "/ui"))
    seen = []
    for _ in range(6):
        tab.press("Tab")
        seen.append(tab.evaluate("document.activeElement.className || document.activeElement.innerText"))
    assert seen == ["skip", "Node", "Cluster", "Faults", "scroll", "sort"]
    tab.evaluate("document.querySelector('.skip').focus()")
    tab.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "main"


@pytest.mark.slow
def test_a_fault_is_set_and_ended(tab: Browser, node: Node) -> None:
    tab.open(address(node, "/ui/faults"))
    choose = "const kind = document.querySelector('[name=kind]'); kind.value = '{}'; "
    choose += "kind.dispatchEvent(new Event('change', {{bubbles: true}}));"
    tab.evaluate(f"{{ {choose.format('move_clock')} }}")
    shown = "[...document.querySelectorAll('[data-field]')].filter((one) => one.checkVisibility())"
    assert tab.evaluate(f"{shown}.map((one) => one.dataset.field)") == ["seconds"]
    tab.evaluate(f"{{ {choose.format('refuse')} }}")
    tab.evaluate("document.querySelector('[name=status]').value = 'NOTHING'")
    tab.evaluate("document.querySelector('#new button').click()")
    tab.wait_for("document.getElementById('said').innerText.includes('NOTHING')")
    tab.problems.clear()  # the browser notes the answer 400
    tab.evaluate("document.querySelector('[name=status]').value = 'TMPFAIL'")
    tab.evaluate("document.querySelector('#new button').click()")
    tab.wait_for("document.querySelector('#lasting tbody')?.innerText.includes('TMPFAIL')")
    assert [(fault["kind"], fault["status"]) for fault in node.faults()] == [("refuse", "TMPFAIL")]
    tab.evaluate("document.querySelector('#lasting button:not(.sort)').click()")
    tab.wait_for("document.querySelector('#lasting').innerText.includes('Nothing goes wrong')")
    assert node.faults() == []


@pytest.mark.slow
def test_a_document_is_found_changed_and_deleted(tab: Browser) -> None:
    with Node(vbuckets=4, development=True) as node, KvClient(node.connection_string, **login(node, "default")) as kv:
        kv.set("k1", b'{"n": 1}')
        kv.set("other", b"{}")
        tab.open(address(node, "/ui/buckets/default/documents/_default/_default?prefix=k"))
        assert tab.evaluate("[...document.querySelectorAll('#keys tbody th')].map((one) => one.innerText)") == ["k1"]
        assert complaints(tab) == []
        tab.evaluate("document.querySelector('#keys tbody a').click()")
        tab.wait_for("document.querySelector('textarea')?.value === '{\\n  \"n\": 1\\n}'")
        tab.wait_for("document.readyState === 'complete'")
        assert complaints(tab) == []
        tab.evaluate("document.querySelector('textarea').value = '{\"n\": 2}'")
        tab.evaluate("document.querySelector('#edit button').click()")
        wait_until(lambda: kv.get("k1").value == b'{"n": 2}', "the document was never saved")
        tab.wait_for("document.readyState === 'complete' && document.querySelector('textarea').value.includes('\\n')")
        kv.set("k1", b'{"n": 3}')
        tab.evaluate("document.querySelector('#edit button').click()")
        tab.wait_for("document.getElementById('said').innerText.includes('changed meanwhile')")
        tab.problems.clear()  # the browser notes the answer 409
        assert kv.get("k1").value == b'{"n": 3}'
        tab.open(address(node, "/ui/buckets/default/documents/_default/_default/k1"))
        tab.wait_for("document.querySelector('textarea')?.value.includes('3')")
        tab.evaluate("document.querySelector('#delete button').click()")
        tab.wait_for("location.pathname.endsWith('/_default') && document.querySelector('#keys')")
        tab.wait_for("document.readyState === 'complete'")
        assert "k1" not in tab.text("#keys")
        assert tab.dialogs == ["Delete the document k1?"]


@pytest.mark.slow
def test_a_cluster_is_ordered_about(tab: Browser) -> None:
    with Cluster(nodes=2, replicas=1, vbuckets=8) as cluster:
        tab.open(address(cluster.nodes[0].node, "/ui/cluster"))

        def press(text: str, nth: int = 0) -> None:
            found = f"[...document.querySelectorAll('button')].filter((one) => one.innerText.startsWith('{text}'))"
            tab.wait_for(f"{found}.length > {nth}")
            tab.evaluate(f"{found}[{nth}].click()")

        tab.wait_for("document.querySelectorAll('#nodes tbody tr').length === 2")
        press("Add a node")
        tab.wait_for("document.querySelectorAll('#nodes tbody tr').length === 3")
        assert "waits for a rebalance" in tab.text("#nodes")
        press("Rebalance")
        wait_until(lambda: cluster.state().is_balanced and cluster.state().task is None, "it never was balanced")
        tab.wait_for("document.querySelector('main .facts').innerText.includes('balanced')")
        press("Fail over", 1)
        tab.wait_for("document.querySelector('#nodes').innerText.includes('failed over')")
        assert len(tab.dialogs) == 1
        assert tab.dialogs[0].startswith("Give ")
        press("Add back (delta)")
        tab.wait_for("document.querySelector('#nodes').innerText.includes('comes back with delta recovery')")
        assert complaints(tab) == []
        leave(tab)


def test_the_page_of_a_pipeline_stays_fresh_and_says_when_its_process_is_gone(tab: Browser) -> None:
    pipeline = PretendedPipeline("dcpstream /data/flights")
    pipeline.vbucket_count = 20
    with Monitor([pipeline]) as monitor:
        tab.open(f"http://127.0.0.1:{monitor.port}/")
        tab.wait_for("document.querySelectorAll('.plot svg path').length === 4")
        assert tab.evaluate("document.querySelectorAll('#vbuckets tbody tr').length") == 16
        head = "[...document.querySelectorAll('#vbuckets .sort')].find((one) => one.innerText === 'Read up to')"
        tab.evaluate(f"{head}.focus()")
        tab.press("Enter")
        names = "[...document.querySelectorAll('#vbuckets tbody th')].map((one) => one.innerText).join()"
        backwards = ",".join(str(vbid) for vbid in reversed(range(16)))
        assert tab.evaluate(names) == backwards
        pipeline.lag = 4321
        pipeline.rows += 500_000
        pipeline.write(5)
        tab.wait_for("document.querySelector('#batches tbody th')?.innerText === '5'")
        tab.wait_for("document.querySelectorAll('.plot')[1].innerText.includes('4,321')")
        tab.wait_for("Number(document.querySelector('.tile .rate').innerText.replaceAll(',', '')) > 1000")
        assert tab.evaluate(names) == backwards, "what was chosen stays"
        assert tab.evaluate("document.activeElement.innerText") == "Read up to", "the focus stays"
        pipeline.lag = 17
        tab.wait_for("document.querySelectorAll('.plot .now')[1].innerText === '17'")
        assert "at most 4,321" in tab.text(".plot:nth-child(2)"), "a level may fall"
    tab.wait_for(is_shown("#gone"))
    assert tab.text("#gone").startswith("The process of the pipelines does not answer. The figures are of ")
    tab.problems.clear()  # the browser's own words about requests that nobody answered


@pytest.mark.slow
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_everybody_can_use_the_pages_of_pipelines(tab: Browser, is_dark: bool) -> None:
    failed, busy = PretendedPipeline("dcpstream /data/flights"), PretendedPipeline("dcpstream s3a://" + "long/" * 30)
    failed.failure = RuntimeError("the cluster is away " * 20)
    with Monitor([failed, busy]) as monitor:
        back = tuple(RollbackReport(vbid, 2**50, 2**49, 2**63 + vbid, 2**63 - vbid) for vbid in range(8))
        for batch_id in range(130):
            busy.write(batch_id, back if batch_id == 7 else ())
        busy.fold(5)
        busy.lag, busy.vbucket_count, busy.rejects_place = 9, 64, "lake.shop.rejects"
        paths = ("/", *(f"/pipelines/{quote(one.name, safe='')}" for one in (failed, busy)), "/pipelines/none")
        pages = [f"http://127.0.0.1:{monitor.port}{path}" for path in paths]
        found = complaints_of(tab, pages, is_dark=is_dark)
        tab.problems.clear()  # the browser notes the answer 404
        assert found == {}


@pytest.mark.slow
def test_all_vbuckets_of_a_pipeline_are_a_click_away(tab: Browser) -> None:
    pipeline = PretendedPipeline("dcpstream /data/flights")
    pipeline.vbucket_count = 1024
    with Monitor([pipeline]) as monitor:
        tab.open(f"http://127.0.0.1:{monitor.port}/")
        tab.wait_for("document.querySelector('#vbuckets .note a')?.innerText === 'Show all 1,024'")
        tab.evaluate("document.querySelector('#vbuckets .note a').click()")
        tab.wait_for("document.querySelectorAll('#vbuckets tbody tr').length === 1024")
        tab.wait_for("document.querySelector('#vbuckets .filter input')")
        tab.evaluate("document.querySelector('#vbuckets .filter input').focus()")
        tab.call("Input.insertText", text="1,123")
        tab.wait_for("document.querySelectorAll('#vbuckets tbody tr:not([hidden])').length === 1")
        pipeline.write(6)
        tab.wait_for("document.querySelector('#batches tbody')")
        assert tab.evaluate("document.querySelectorAll('#vbuckets tbody tr:not([hidden])').length") == 1
