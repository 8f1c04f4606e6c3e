"""Export trained models for other programs: as ONNX, or as programs of `torch.export`."""
