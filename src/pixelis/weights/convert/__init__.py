"""Converters from published weight formats to ONNX."""
