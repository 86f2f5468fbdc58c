"""Recordings: a bucket's changes in one file, and a node that plays them back.

`recorder` drains a client into a `file`; `history` says what the frames of a file mean, and where each vbucket stands;
`player` gives them to a node. Nothing is loaded here: users import the module that they need.
"""
