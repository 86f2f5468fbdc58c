"""`dcpstream demo`: real data, real processes, real kills, and a verdict."""

from dcpstream_demo.command import demo_command

__all__ = ["demo_command"]
