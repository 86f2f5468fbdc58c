"""Stores that are not open: finding, checking and repairing them."""
