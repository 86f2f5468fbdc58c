"""The history's bytes: blocks, segment files, and reading them back at a start."""
