"""The end of a DCP connection that receives history."""
