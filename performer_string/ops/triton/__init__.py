"""Linear attention as fused Triton kernels for NVIDIA GPUs. `api` imports Triton at its first use."""
