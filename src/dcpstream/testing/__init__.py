"""Test kit for those who test against the protocol; the product itself never imports it."""
