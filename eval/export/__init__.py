"""Trained models as files for other programs: ONNX, and programs of `torch.export`."""
