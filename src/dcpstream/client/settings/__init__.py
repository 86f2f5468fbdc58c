"""Checked values from the user's arguments: connection string, seeds, login, TLS, options of connections."""
