"""Measurements side by side, each a script."""
