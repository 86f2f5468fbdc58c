"""Programs and tests that judge and measure the packages. No wheel contains them."""
