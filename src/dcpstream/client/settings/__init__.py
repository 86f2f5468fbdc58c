"""What a user says about a connection, checked: addresses, login, TLS, options."""
