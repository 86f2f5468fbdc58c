"""Writing rows of a DataFrame or a stream into a bucket.

`writing` has the classes that Spark calls, `write_options` checks the options, `documents` turns rows into writes, and
`rejects` keeps the rows that the bucket refuses.
"""
