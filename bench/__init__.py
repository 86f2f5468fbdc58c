"""What dcpstream costs, always as a ratio to a baseline that was measured in the same run."""
