"""The data directory of a node, without the stores of its buckets.

`DataDirectory` has a directory for each bucket, and a file with the settings of the cluster and the buckets.
`UserFile` keeps users that were made while the node ran. Both files are `checksummed_json`. `check` reads a directory
without a node, for `dcpstream store check`.
"""
