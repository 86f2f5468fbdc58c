"""`dcpstream demo`: real data, real processes, real kills, and a verdict."""
