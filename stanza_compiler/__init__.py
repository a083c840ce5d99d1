"""Compile a PyTorch model into a layer-separated distributed training program."""
