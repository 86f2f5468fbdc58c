"""Sessions of one's own, with a session of Python's in the place of Spark's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException

from dcpstream.errors import ConfigError
from dcpstream_node.testing.simulation.clock import VirtualClock
from dcpstream_spark.tables.sessions import REST_S, OwnSession, is_connect, own_session


class Catalog:
    def __init__(self) -> None:
        self.catalog, self.database = "spark_catalog", "default"

    def currentCatalog(self) -> str:  # noqa: N802 - Spark's name
        return self.catalog

    def currentDatabase(self) -> str:  # noqa: N802
        return self.database

    def setCurrentCatalog(self, name: str) -> None:  # noqa: N802
        self.catalog, self.database = name, "ns"

    def setCurrentDatabase(self, name: str) -> None:  # noqa: N802
        self.database = name


class Classic:
    """As much of a session as is copied. What the process has cannot be set."""

    def __init__(self) -> None:
        self.values = {"spark.master": "local"}
        self.conf = SimpleNamespace(set=self._set, getAll=dict(self.values))
        self.catalog = Catalog()

    def _set(self, name: str, value: str) -> None:
        assert name != "spark.master", "a setting of the process was set"
        if name == "spark.driver.memory":
            raise AnalysisException("[CANNOT_MODIFY_CONFIG]")
        self.values[name] = value
        self.conf.getAll = dict(self.values)

    def newSession(self) -> Classic:  # noqa: N802 - Spark's name
        made = Classic()
        made.conf.getAll = dict(made.values)
        return made


def test_a_session_of_its_own_has_the_settings_and_the_catalog() -> None:
    user: Any = Classic()
    user.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    user.catalog.setCurrentCatalog("lake")
    user.catalog.setCurrentDatabase("shop")
    own: Any = own_session(user)
    assert own.values == {"spark.master": "local", "spark.sql.session.timeZone": "Asia/Tokyo"}
    assert (own.catalog.catalog, own.catalog.database) == ("lake", "shop")
    own.conf.set("spark.sql.shuffle.partitions", "1")
    assert "spark.sql.shuffle.partitions" not in user.values


def test_settings_of_the_process_that_a_builder_wrote_into_a_session_are_left_out() -> None:
    user: Any = Classic()
    user.conf.getAll = {**user.values, "spark.driver.memory": "2g", "spark.sql.session.timeZone": "Asia/Tokyo"}
    own: Any = own_session(user)
    assert own.values == {"spark.master": "local", "spark.sql.session.timeZone": "Asia/Tokyo"}


def test_a_session_over_spark_connect_is_made_again_after_a_rest() -> None:
    """The server forgets one that was not used for an hour."""

    class Connect:
        __module__ = "pyspark.sql.connect.session"

        def __init__(self) -> None:
            self.values: dict[str, str] = {}
            self.conf = SimpleNamespace(set=self.values.__setitem__)
            self.client = SimpleNamespace(close=lambda: None)
            self.version = "4.2.1"

        def cloneSession(self) -> Connect:  # noqa: N802 - Spark's name
            return Connect()

    clock = VirtualClock()
    for user, is_remade in ((Connect(), True), (Classic(), False)):
        own = OwnSession(cast("Any", user), {"a": "1"}, clock)
        first: Any = own.get()
        assert first.values["a"] == "1"
        clock.now += REST_S - 1
        assert own.get() is first
        clock.now += REST_S + 1
        second: Any = own.get()
        assert (second is not first) == is_remade
        assert second.values["a"] == "1"


def test_spark_connect_before_it_makes_sessions_is_refused() -> None:
    old: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", "version": "4.0.5"})()
    assert is_connect(old)
    assert not is_connect(None)
    with pytest.raises(ConfigError, match=r"since Spark 4\.1\. Install PySpark 4\.1 or newer"):
        own_session(old)


def test_a_copy_over_spark_connect_is_closed_before_the_threads_of_python_end() -> None:
    """Otherwise the process of the client never exits; the stories over Spark Connect exit only with it."""
    done: list[str] = []

    class Connect:
        __module__ = "pyspark.sql.connect.session"

        def __init__(self, name: str) -> None:
            self.client = SimpleNamespace(close=lambda: done.append(f"closed {name}"))

        @property
        def version(self) -> str:
            done.append("known to the server")
            return "4.2.1"

        def cloneSession(self) -> Connect:  # noqa: N802 - Spark's name
            done.append("copied")
            return Connect("copy")

    user: Any = Connect("user")
    own = own_session(user)
    assert done == ["known to the server", "copied"]
    del own
    assert done[2:] == ["closed copy"]
