"""The jinja2 templates of the generated program; no code."""
