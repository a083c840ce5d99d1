"""A generated program on emulated hosts of this machine, measured against what was predicted."""
