from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions


def test_a_document_comes_back(couchbase_bucket):
    login = PasswordAuthenticator(couchbase_bucket.username, couchbase_bucket.password)
    cluster = Cluster(couchbase_bucket.connection_string, ClusterOptions(login))
    collection = cluster.bucket(couchbase_bucket.name).default_collection()
    collection.upsert("airline::42", {"name": "Polar Air"})
    assert collection.get("airline::42").content_as[dict] == {"name": "Polar Air"}
