"""A judge of the Spark source and of the tables: rounds of random trouble, and a check of every row afterwards.

Data passes through the modules in this order. `scenario` draws a round from a seed. `world` runs the cluster and makes
its trouble, `kv` writes documents and reads them back, and `history` knows which write has which seqno. `host` runs the
queries on Spark, in this process or in one that can be killed. `tables` reads what the queries have written, `checker`
compares that with the bucket and with the history, and `rounds` joins all of them. `mutants` plants bugs, to see
whether the judge finds them.

`kv`, `history`, `tables` and `checker` import nothing of `dcpstream`: they would share its mistakes.
"""
