"""One connection for all tests, an empty bucket for each."""

import pytest
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions
from orders import Orders


@pytest.fixture(scope="session")
def cluster(couchbase_session_node):
    """The SDK, connected once, because a cluster can be shared and connecting takes longer than a test."""
    login = PasswordAuthenticator(couchbase_session_node.username, couchbase_session_node.password)
    connected = Cluster(couchbase_session_node.connection_string, ClusterOptions(login))
    yield connected
    connected.close()


@pytest.fixture
def shop(cluster, couchbase_bucket):
    """The scope of the application, in an empty bucket."""
    return cluster.bucket(couchbase_bucket.name).scope("shop")


@pytest.fixture
def orders(shop):
    """The application under test."""
    return Orders(shop)
