"""The application against a node, without mocks."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from couchbase.exceptions import DocumentExistsException, DocumentNotFoundException
from couchbase.options import GetOptions
from orders import UnknownOrder


def test_an_order_is_placed_and_paid(orders, shop):
    orders.open_basket("ann")
    orders.add_item("ann", "tea", 7)
    orders.add_item("ann", "cup", 5)
    assert orders.place("ann", 1) == 12
    assert orders.pay(1, 10) == 2
    assert orders.pay(1, 2) == 0
    order = shop.collection("orders").get("1").content_as[dict]
    assert order == {
        "customer": "ann",
        "items": [{"item": "tea", "price": 7}, {"item": "cup", "price": 5}],
        "total": 12,
        "paid": 12,
    }


def test_a_basket_goes_with_its_order(orders, shop):
    orders.open_basket("bob")
    orders.place("bob", 1)
    with pytest.raises(DocumentNotFoundException):
        shop.collection("baskets").get("bob")


@pytest.mark.parametrize("customer", ["ann", "bob", "cleo"])
def test_each_test_has_a_bucket_of_its_own(orders, customer):
    orders.open_basket("the same name in each of them")
    with pytest.raises(DocumentExistsException):
        orders.open_basket("the same name in each of them")
    assert orders.place("the same name in each of them", 1) == 0


def test_baskets_expire(orders, shop):
    orders.open_basket("ann")
    orders.add_item("ann", "tea", 7)
    found = shop.collection("baskets").get("ann", GetOptions(with_expiry=True))
    assert found.expiry_time is not None


def test_nothing_is_sold_without_a_basket(orders):
    with pytest.raises(UnknownOrder):
        orders.add_item("nobody", "tea", 7)
    with pytest.raises(UnknownOrder):
        orders.place("nobody", 1)
    with pytest.raises(UnknownOrder):
        orders.pay(1, 5)


def test_payments_at_the_same_time_are_all_counted(orders, shop):
    orders.open_basket("ann")
    orders.add_item("ann", "tea", 100)
    orders.place("ann", 1)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: orders.pay(1, 10), range(2)))
    assert shop.collection("orders").get("1").content_as[dict]["paid"] == 20


@pytest.mark.couchbase_node(scope="function", vbuckets=8)
def test_a_node_that_goes_away(couchbase_node, couchbase_bucket):
    """This test has a node of its own, which it stops and starts."""
    couchbase_node.stop()
    assert not couchbase_node.is_running
