"""One DCP connection."""
