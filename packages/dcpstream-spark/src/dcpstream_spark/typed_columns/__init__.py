"""The typed columns of JSON documents, by one rule for the source and the tables.

`fitting` has the rule: which documents fit a schema, and what becomes of the others. `parsing` reads documents as
columns, and `kinds` has the types that a field may have, for Arrow, Spark and SQL.
"""
