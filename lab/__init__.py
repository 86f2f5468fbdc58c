"""What judges the packages and measures them: never shipped."""
