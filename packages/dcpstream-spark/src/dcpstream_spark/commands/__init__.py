"""Commands of the program `dcpstream` that Spark is needed for, and its part of `dcpstream doctor`."""
