"""`dcpstream demo`: the flights of 2013 through a node into two Spark tables, with kills and a comparison at the end.

A program on top of the packages, which never import it: the program `dcpstream` finds it by its entry point.
`command` reads the options, and `run` plays the whole. `flights` makes the changes, and `loader` writes them through
`bucket`. `processes` starts and kills the node (`guarded`) and the streaming query (`query`). `watch` follows the
seqnos of both; `display` and `picture` show them. `verdict` compares the bucket with the tables.
"""

from dcpstream_demo.command import demo_command

__all__ = ["demo_command"]
