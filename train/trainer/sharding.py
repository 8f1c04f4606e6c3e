"""Training with weights, gradients and the optimiser's state sharded between processes: `--trainer.strategy fsdp`.

Checkpoints are those of a training on one process: whole weights, and states of the optimiser by the number of the
weight in its groups. So a run goes on with any number of processes, sharded or not.
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
    """Shard the weights of a model in place, by torch's `fully_shard`: block by block, and the rest.

    Every forward pass of a block gathers its weights, and its backward pass adds up their gradients.

    Args:
        vit: the model, with equal weights in every process.
        mesh: of the processes.
    """
    if isinstance(vit, FSDPModule):  # by a fit, whose validation follows
        return
    for block in vit.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(vit, mesh=mesh)


def whole(x: Tensor) -> Tensor:
    """Return a whole tensor in place of a sharded one. Every process has to call it."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def share_of(x: Any, like: Any) -> Any:
    """Return this process's shard of a whole tensor, by the shards of another one; other values as they are."""
    if isinstance(like, DTensor) and isinstance(x, Tensor) and x.shape == like.shape:
        return distribute_tensor(x.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
    return x


class Sharded(ModelParallelStrategy):
    """Lightning's strategy for `fully_shard`, over all processes, with the checkpoints of one process.

    Lightning's own checkpoints number the states of the optimiser by the order of the weights in the model. That is not
    the order of the groups with and without weight decay. Another strategy would give a weight another's state.
    """

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        share_between_all_processes(self)
        super().setup_environment()

    def setup(self, trainer: L.Trainer) -> None:
        """Shard the weights, and build the optimiser of the shards."""
        module: Any = self.lightning_module
        # Lightning wants it there, and a method of the class would be one for every strategy.
        module.configure_model = partial(shard, module.vit, self.device_mesh["data_parallel"])
        module.configure_model()
        super().setup(trainer)

    def gathered(self, whole: bool) -> None:
        """Hold whole weights in every process, or shard them again."""
        for module in self.lightning_module.modules():  # type: ignore[union-attr]
            if isinstance(module, FSDPModule):
                module.set_reshard_after_forward(not whole, recurse=False)
                module.unshard() if whole else module.reshard()

    # Processes validate on unequal numbers of batches, so that no forward pass may wait for another process.

    def on_validation_start(self) -> None:
        self.gathered(True)

    def on_validation_end(self) -> None:
        self.gathered(False)

    def on_test_start(self) -> None:
        self.gathered(True)

    def on_test_end(self) -> None:
        self.gathered(False)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the whole state of an optimiser on the first process, nothing on others."""
        state = optimizer.state_dict()
        numbered = {n: {key: whole(x) for key, x in each.items()} for n, each in state["state"].items()}
        if self.global_rank:
            return {}
        return {**state, "state": {n: {key: x.cpu() for key, x in each.items()} for n, each in numbered.items()}}

    # Loaded before the weights are sharded, as by other strategies: the loader asks where an epoch goes on.

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
        own = module.state_dict()  # of shards where a fit came before
        module.load_state_dict({n: share_of(x, own.get(n)) for n, x in checkpoint["state_dict"].items()}, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            shares = {n: {k: share_of(x, weights[n]) for k, x in each.items()} for n, each in state["state"].items()}
            optimizer.load_state_dict({**state, "state": shares})


def check_sharded(config: Any) -> None:
    """Log what a sharded training leaves out; raise a ValueError for what needs whole weights at every step."""
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
