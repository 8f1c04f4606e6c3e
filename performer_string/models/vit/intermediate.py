"""The outputs of several blocks of a ViT, for heads that take more than the last one, with the interface of DINOv2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

if TYPE_CHECKING:
    from performer_string.models.vit.model import ViT


def block_indices(n: int | Sequence[int], depth: int) -> list[int]:
    """Return the indices of blocks, in ascending order: the last n for a number, else those of the list.

    Raises:
        ValueError: more blocks than there are, none, or an index that is not there.
    """
    if isinstance(n, int):
        if not 1 <= n <= depth:
            raise ValueError(f"n is a number of blocks from 1 to {depth}, or a list of their indices, not {n}.")
        return list(range(depth - n, depth))
    missing = [i for i in n if not -depth <= i < depth]
    if missing or not n:
        raise ValueError(f"the blocks are counted from 0 to {depth - 1}, or from the end by -1 and on, not {list(n)}.")
    return sorted({i % depth for i in n})


def block_outputs(
    vit: ViT,
    images: Tensor,
    wanted: Sequence[int],
    last: int,
    norm: bool,
    positions: Tensor | None = None,
    patch_mask: Tensor | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Return the tokens after a block, and those after some of the blocks before it.

    Args:
        vit: model whose blocks are computed.
        images: input images, [B, channels, height, width].
        wanted: indices of the blocks whose outputs are returned.
        last: index of the last block that is computed.
        norm: whether to apply the model's last norm to the outputs of the wanted blocks.
        positions, patch_mask: positions and mask of the patches, see `ViT.forward`.

    Returns:
        Tokens after the last block, [B, P + N, D], and a list of those after the wanted blocks, in ascending order.
    """
    x, rotations, layout = vit.stem(images, positions, patch_mask)
    outputs: list[Tensor] = []
    for i, block in enumerate(list(vit.blocks)[: last + 1]):
        x = vit.apply_block(block, x, rotations[i], layout)
        if i in wanted:
            outputs.append(vit.norm(x) if norm else x)
    return x, outputs


class IntermediateLayers:
    """Mixin of a ViT: the outputs of several blocks."""

    def get_intermediate_layers(
        self,
        images: Tensor,
        n: int | Sequence[int] = 1,
        reshape: bool = False,
        return_class_token: bool = False,
        norm: bool = True,
        positions: Tensor | None = None,
        patch_mask: Tensor | None = None,
    ) -> tuple[Any, ...]:
        """Return the outputs of several blocks, as DINOv2's method of this name does. A `TimmViT` has timm's.

        Args:
            images: input images, [B, channels, height, width].
            n: number of last blocks, or indices of blocks, whose outputs are returned in ascending order.
            reshape: whether to return maps [B, D, h, w] in place of patches [B, N, D].
            return_class_token: whether to return pairs of patches and the class token [B, D].
            norm: whether to apply the last norm to each.
            positions, patch_mask: positions and mask of the patches, see `forward`.

        Raises:
            ValueError: blocks or a class token that the model does not have.
        """
        vit = cast("ViT", self)
        if return_class_token and vit.config.pool != "cls":
            raise ValueError(f"this model has no class token: it was built with pool={vit.config.pool!r}, not 'cls'.")
        wanted = block_indices(n, len(vit.blocks))
        last = wanted[-1]  # blocks after it are not needed
        _, outputs = block_outputs(vit, images, wanted, last, norm, positions, patch_mask)
        patches = [each[:, vit.num_prefix :] for each in outputs]
        if reshape:
            grid = vit.grid(*images.shape[2:])
            patches = [each.transpose(1, 2).unflatten(2, grid).contiguous() for each in patches]
        if not return_class_token:
            return tuple(patches)
        return tuple(zip(patches, (each[:, 0] for each in outputs), strict=True))
