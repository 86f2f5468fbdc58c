"""Commands of the program `dcpstream` that run a node, or read its files and recordings."""
