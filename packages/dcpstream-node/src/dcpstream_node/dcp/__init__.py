"""The DCP side of a node.

`handle_dcp` answers frames with a DCP opcode: DCP_OPEN makes a producer or consumer machine of `dcpstream.dcp`,
and later frames go to that machine. Producers read a bucket's vbuckets; consumers change them through `Replicas`, and
`Takeovers` hands a vbucket over. `dcp_stats` has the STAT groups of DCP connections.
"""
