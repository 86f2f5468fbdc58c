"""Sockets of the key-value port: listening, TLS, limits, and one task for each connection."""
