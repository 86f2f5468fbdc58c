"""A client of other people, encrypted: what it does with a certificate authority and with a certificate of its user.

Arguments: connection string, trust store, what is expected (`served` or `refused`), then either user and password, or
`certificate`, certificate file and key file. Run as a process of its own: the SDK's core waits for nobody at exit.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

from couchbase.auth import CertificateAuthenticator, PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.exceptions import CouchbaseException
from couchbase.options import ClusterOptions, ClusterTimeoutOptions

PATIENCE = timedelta(seconds=20)
IMPATIENCE = timedelta(seconds=4)


def main() -> str:
    """Do it; what came out."""
    connection, trusted, expected = sys.argv[1:4]
    if sys.argv[4] == "certificate":
        who = CertificateAuthenticator(cert_path=sys.argv[5], key_path=sys.argv[6], trust_store_path=trusted)
    else:
        who = PasswordAuthenticator(sys.argv[4], sys.argv[5], cert_path=trusted)
    patience = PATIENCE if expected == "served" else IMPATIENCE
    timeouts = ClusterTimeoutOptions(bootstrap_timeout=patience, connect_timeout=patience, kv_timeout=patience)
    try:
        cluster = Cluster(connection, ClusterOptions(who, timeout_options=timeouts))
        cluster.wait_until_ready(patience)
        collection = cluster.bucket("default").default_collection()
        collection.upsert("over-tls", {"seen": True})
        if collection.get("over-tls").content_as[dict] != {"seen": True}:
            return "wrong"
        if sys.argv[4] == "Administrator" and cluster.buckets().get_bucket("default").name != "default":
            return "wrong"  # over HTTPS, at the port that the cluster map tells
    except CouchbaseException as error:
        print(type(error).__name__, file=sys.stderr)
        return "refused"
    return "served"


if __name__ == "__main__":
    print(main(), flush=True)
    os._exit(0)
