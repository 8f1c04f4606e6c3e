"""Linear attention with exponential or power features, in chunks of tokens: plain torch operations on any device.

    operator.py     `chunked_attention`: the autograd function, and the same as one operation of a compiled graph
    loop.py         `ChunkLoop`: a pass over chunks of the keys and one over chunks of the queries, and their gradients
    sums.py         `ChunkSums`: what a kind of features has to compute for a chunk
    exponential.py  the sums of exp(w x - square |x|^2), as FAVOR+ has them
    flash.py        the same by torch's flash attention, for the forward pass on a CPU
    power.py        the sums of relu(w x)^order, as arc-cosine maps have them

No N x m features are held, in either pass. Rotations are applied to a chunk at a time.
"""

from performer_string.ops.chunked.operator import chunked_attention

__all__ = ["chunked_attention"]
