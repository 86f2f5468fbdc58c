"""A small key-value client: pipelined writes and reads."""
