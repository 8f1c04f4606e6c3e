"""Linear attention as fused Triton kernels for NVIDIA GPUs. Triton is imported at the first use.

features.py  entry points for exponential and power features, with `forward`, `backward` and `backward_queries`
square.py    entry points for polynomial kernels, with `square_forward` and `square_backward`
device.py    requirements on devices, types and memory
common.py    functions inside of several kernels
launch.py    block sizes and launches
"""
