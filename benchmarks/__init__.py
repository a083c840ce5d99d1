"""What is measured outside of the tests, each a script: `python -m benchmarks.zoo --help`."""
