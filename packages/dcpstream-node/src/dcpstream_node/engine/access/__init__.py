"""Users, groups and roles, and the privileges that follow from them.

`Users` holds each `User` with credentials and `Role`s, and the `Group`s that give more roles. `User.rights` are the
privileges at a place: the node, a bucket, a scope or a collection. `permission` compares them with the privileges that
a request needs. `LoginThrottle` slows down addresses with many failed logins.
"""
