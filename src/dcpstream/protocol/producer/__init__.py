"""The end of a DCP connection that sends history."""
