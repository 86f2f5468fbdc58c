"""Compaction: which rows stay, and rewriting the files that hold them."""
