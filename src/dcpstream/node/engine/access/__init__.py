"""Users, groups, roles, and what they allow."""
