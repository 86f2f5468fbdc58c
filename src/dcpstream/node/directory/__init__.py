"""A node's data directory: its own files, checked on the way in and out."""
