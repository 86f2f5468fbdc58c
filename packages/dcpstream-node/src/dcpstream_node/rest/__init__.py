"""The management port, as the server's REST API has it.

`Management` is the aiohttp application: it checks a request's head, logs the user in, and calls the handler of a
`Route`. Each family of pages (pools, topology, buckets, collections, users, cluster map, statistics, health) lists its
routes and sees the node through `Site`, which also reaches the cluster's manager. `ui` has the pages for people.
`authorization` compares a user's roles with the right that a route needs; `bucket_form` and `pool_form` read settings
from forms; `connection_limits` bounds connections and slow requests.
"""

from dcpstream_node.rest.app import Management

__all__ = ["Management"]
