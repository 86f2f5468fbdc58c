"""Foreign clients against a node of ours: `make interop`, and `tests/interop/test_clients.py`.

`building` builds the programs (Go, Java) once, `clients` lists the clients and their checks, `running` runs a program
against a fresh node and reads its output, `capture` has tshark decode a session, `page` writes the table of the
reference, and `__main__` prints it.
"""
