"""Clients that are not ours against a node of ours: `make interop`, and `tests/interop/test_clients.py`.

`building` makes the programs (Go, Java) once, `clients` says what each of them is asked to do, `running` gives each a
fresh node and reads what it says, `__main__` prints the table.
"""
