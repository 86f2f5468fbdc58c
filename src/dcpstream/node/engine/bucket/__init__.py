"""A bucket without files and threads: its vbuckets, their documents, its manifest and its parameters."""
