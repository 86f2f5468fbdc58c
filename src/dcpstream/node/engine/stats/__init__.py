"""What STAT tells of a bucket and of its vbuckets."""
