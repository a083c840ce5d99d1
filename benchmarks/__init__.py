"""What is measured outside of the tests: `python -m benchmarks.zoo --help`."""
