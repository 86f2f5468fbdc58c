"""Benches: the cost of dcpstream, as a ratio to a baseline of the same run."""
