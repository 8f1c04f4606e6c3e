"""Training with weights, gradients and optimiser state sharded between processes: `--trainer.strategy fsdp`.

Checkpoints are those of a training on one process: full weights, and optimiser states by the index of the weight in
the parameter groups. So a run can be resumed with any number of processes, sharded or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from performer_string import ViT
from train._compat import share_between_all_processes

NAME = "fsdp"


def shard(vit: ViT, mesh: DeviceMesh) -> None:
    """Shard the weights of a model in place by torch's `fully_shard`: each block, and the rest.

    The forward pass of a block gathers its weights, and the backward pass sums their gradients over processes.

    Args:
        vit: the model, with equal weights in all processes.
        mesh: device mesh of the processes.
    """
    if isinstance(vit, FSDPModule):  # sharded by a preceding fit
        return
    for block in vit.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(vit, mesh=mesh)


def whole(x: Tensor) -> Tensor:
    """Return the full tensor of a sharded one. All processes must call it."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def share_of(x: Any, like: Any) -> Any:
    """Return this process's shard of a full tensor, sharded like another one; other values are unchanged."""
    if isinstance(like, DTensor) and isinstance(x, Tensor) and x.shape == like.shape:
        return distribute_tensor(x.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
    return x


class Sharded(ModelParallelStrategy):
    """Lightning's strategy for `fully_shard` over all processes, with the checkpoints of one process.

    Lightning's own checkpoints number optimiser states by the order of the weights in the model, which is not that of
    the groups with and without weight decay. Other strategies would assign states to the wrong weights.
    """

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        share_between_all_processes(self)
        super().setup_environment()

    def setup(self, trainer: L.Trainer) -> None:
        """Shard the weights, and build the optimiser on the shards."""
        module: Any = self.lightning_module
        # Lightning requires this method, and in the class it would affect every strategy.
        module.configure_model = partial(shard, module.vit, self.device_mesh["data_parallel"])
        module.configure_model()
        super().setup(trainer)

    def gathered(self, whole: bool) -> None:
        """Gather full weights in every process, or shard them again."""
        for module in self.lightning_module.modules():  # type: ignore[union-attr]
            if isinstance(module, FSDPModule):
                module.set_reshard_after_forward(not whole, recurse=False)
                module.unshard() if whole else module.reshard()

    # Processes validate on different numbers of batches, so that no forward pass may wait for another process.

    def on_validation_start(self) -> None:
        self.gathered(True)

    def on_validation_end(self) -> None:
        self.gathered(False)

    def on_test_start(self) -> None:
        self.gathered(True)

    def on_test_end(self) -> None:
        self.gathered(False)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the full state of an optimiser on the first process, and an empty one on others."""
        state = optimizer.state_dict()
        numbered = {n: {key: whole(x) for key, x in each.items()} for n, each in state["state"].items()}
        if self.global_rank:
            return {}
        return {**state, "state": {n: {key: x.cpu() for key, x in each.items()} for n, each in numbered.items()}}

    # Checkpoints are loaded before the weights are sharded, as in other strategies: the loader needs its position.

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        return False

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        return self.checkpoint_io.load_checkpoint(checkpoint_path)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        module: Any = self.lightning_module
        own = module.state_dict()  # shards, after a preceding fit
        module.load_state_dict({n: share_of(x, own.get(n)) for n, x in checkpoint["state_dict"].items()}, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            shares = {n: {k: share_of(x, weights[n]) for k, x in each.items()} for n, each in state["state"].items()}
            optimizer.load_state_dict({**state, "state": shares})


def check_sharded(config: Any) -> None:
    """Log what a sharded training leaves out; raise a ValueError for settings that need full weights at every step."""
    if config.ema:
        raise ValueError(f"--ema averages whole weights, which strategy {NAME} shares out: take ddp, or leave it out.")
    if config.compile:
        raise ValueError(f"--compile and strategy {NAME} were not tried together: take ddp, or leave it out.")
    if config.model.distillation.attention:
        raise ValueError(
            f"distillation.attention runs layers again, outside of the blocks that strategy {NAME} gathers: take ddp."
        )
    if config.figures_every:
        rank_zero_info(f"TensorBoard's figures need whole weights: there are none with strategy {NAME}.")
