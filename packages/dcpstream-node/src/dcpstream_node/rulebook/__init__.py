"""Judge any Couchbase-compatible server by the rules of the protocol: held, differs, or not decidable from outside.

The rules' tests are a *book* (`book`): the folder tests/conformance of this project, of which the wheel has a copy.
They were written for simulated nodes. `ServerNode` (`server_node`) takes the place of one: a bucket of the server, made
for the test. `runner` runs the tests by pytest and counts the rules, `report` prints.

This package needs pytest: `pip install 'dcpstream-node[testing]'`.
"""
