"""A vbucket's index: the newest row of each key, and rows by seqno."""
