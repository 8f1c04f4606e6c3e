"""Modules between the operations and the model: self-attention and its backends, blocks, pooling, value maps."""
