"""One pass per file, each a pure function of the same name."""
