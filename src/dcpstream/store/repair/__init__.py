"""Stores that are not open: `detect` recognises them, `check` reports their damage, `repair` cuts the damage out."""
