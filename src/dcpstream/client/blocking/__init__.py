"""The blocking client: sockets, a selector, and the reader in the thread of the caller."""
