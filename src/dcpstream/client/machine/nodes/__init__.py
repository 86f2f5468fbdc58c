"""The connections to the nodes."""
