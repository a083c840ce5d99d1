"""An ONNX file as a torch module."""
