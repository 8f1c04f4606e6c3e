"""Linear attention as fused Triton kernels for NVIDIA GPUs. Triton is imported at the first call."""
