"""A small application: orders in Couchbase, by the official SDK. Its tests are in `tests/`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import couchbase.subdocument as sd
from couchbase.exceptions import CasMismatchException, DocumentNotFoundException
from couchbase.options import InsertOptions, MutateInOptions

KEEP_BASKETS = timedelta(hours=2)
ATTEMPTS = 5


class UnknownOrder(Exception):
    """There is no such order."""


class Orders:
    """The orders of a shop.

    Args:
        scope: of the SDK, with the collections `baskets` and `orders`.
    """

    def __init__(self, scope: Any) -> None:
        self._baskets = scope.collection("baskets")
        self._orders = scope.collection("orders")

    def open_basket(self, customer: str) -> None:
        """Create a basket, which expires if it is not used."""
        self._baskets.insert(customer, {"items": []}, InsertOptions(expiry=KEEP_BASKETS))

    def add_item(self, customer: str, item: str, price: int) -> None:
        """Put an item into the basket, and extend the basket's life."""
        try:
            added = sd.array_append("items", {"item": item, "price": price})
            self._baskets.mutate_in(customer, [added], MutateInOptions(expiry=KEEP_BASKETS))
        except DocumentNotFoundException as error:
            raise UnknownOrder(customer) from error

    def place(self, customer: str, number: int) -> int:
        """Turn the basket into an order; returns the amount to pay."""
        try:
            items = self._baskets.get(customer).content_as[dict]["items"]
        except DocumentNotFoundException as error:
            raise UnknownOrder(customer) from error
        total = sum(item["price"] for item in items)
        self._orders.insert(str(number), {"customer": customer, "items": items, "total": total, "paid": 0})
        self._baskets.remove(customer)
        return total

    def pay(self, number: int, amount: int) -> int:
        """Pay a part; returns the rest. Safe against concurrent payments."""
        for _ in range(ATTEMPTS):
            try:
                found = self._orders.get(str(number))
            except DocumentNotFoundException as error:
                raise UnknownOrder(number) from error
            order = found.content_as[dict]
            order["paid"] += amount
            try:
                self._orders.replace(str(number), order, cas=found.cas)
            except CasMismatchException:
                continue
            return int(order["total"] - order["paid"])
        raise RuntimeError(f"order {number} is changed by others all the time")
