"""The message classes, one module for each family."""
