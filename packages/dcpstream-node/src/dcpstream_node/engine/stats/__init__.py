"""Contents of STAT groups: pairs of key and value.

`bucket` and `vbucket` read numbers from a bucket and from its vbuckets, `configuration` names the settings as a server
does, and `dcp_options` reads the options of STAT dcp. Nothing is kept here; the handler of STAT sends the pairs.
"""
