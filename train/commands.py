"""`fit`, `validate` and `test`: Lightning's CLI over one YAML file a recipe, every field of which can be overridden."""

from __future__ import annotations

import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    Callback,
    EMAWeightAveraging,
    LearningRateMonitor,
    ProgressBar,
    TQDMProgressBar,
)
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info
from torch.compiler import list_backends

from performer_string import ViTConfig
from performer_string.utils.registry import lookup
from train.callbacks.checkpoints import LastCheckpoint, MovableCheckpoint, WholeFiles
from train.callbacks.control import (
    CheckData,
    CleanStop,
    HoldRun,
    JobTimer,
    ShowTraceback,
    StepSeed,
    ValidateAtEnd,
    WholeEpochs,
    out_of_time,
)
from train.callbacks.figures import ModelFigures
from train.callbacks.monitor import GradientNorm, History, Record, Throughput
from train.checkpoint import (
    check_no_average,
    check_same_class,
    check_same_model,
    grid_of,
    start_from,
)
from train.contents import config_of, read_checkpoint
from train.data.sizes import Size
from train.extensions import import_modules
from train.fields import named
from train.files import CHECKPOINTS, HISTORY, METRICS, latest_checkpoint, write_aside
from train.folders import leave_no_trace, new_folder


class SaveRecipe(SaveConfigCallback):
    """The run's configuration beside it, once training has begun: a resume that is refused leaves the file as it is.

    Without the checkpoint that a run was resumed from, so that the file stays a recipe for others.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        pass

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            config = self.config.clone()
            config.ckpt_path = None
            with write_aside(Path(config.run_dir) / self.config_filename) as partial:
                self.parser.save(config, partial, skip_none=False, overwrite=True, multifile=False)


def seed_of(value: int | bool) -> int:
    if isinstance(value, bool):  # which Lightning takes for any seed, or none
        raise ValueError(f"seed_everything has to be a number, 0 or more, not {str(value).lower()}.")
    return value


class TrainCLI(LightningCLI):
    """`fit`, `validate` and `test` of an `ImageClassifier` on `ImageData`."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {name: skip for name, skip in LightningCLI.subcommands().items() if name != "predict"}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--run_dir", type=str, default="", help="where the run writes; runs/TIME unless given")
        parser.add_argument("--ema", type=float, default=0.0, help="decay of an average of the weights; 0 for none")
        parser.add_argument("--init_from", type=str, default="", help="a checkpoint to start with the weights of")
        parser.add_argument("--imports", type=list[str] | str, default=[], help="modules of your own, imported first")
        parser.add_argument("--compile", type=str, default="", help="a backend of torch.compile, such as inductor")
        parser.add_argument("--checkpoint_every", type=int, default=500, help="steps between saves of last.ckpt")
        parser.link_arguments("seed_everything", "data.seed", compute_fn=seed_of)
        parser.link_arguments("seed_everything", "model.vit.seed", compute_fn=seed_of)
        parser.link_arguments("model.vit.image_size", "data.size", compute_fn=lambda size: list(Size.of(size)))
        parser.link_arguments(
            ("model.vit.image_size", "data.resolutions"),
            "model.resolutions",
            compute_fn=lambda size, more: list(dict.fromkeys(str(Size.of(each)) for each in [size, *more])),
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.arguments: list[str] = args
        super().parse_arguments(parser, args)

    def _parse_ckpt_path(self) -> None:
        """Lightning would let the checkpoint's hyper-parameters replace those asked for; here they have to agree."""

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        for group in (
            "model.optim",
            "model.distillation",
            "data.arrow",
            "trainer",
        ):  # without others there is an error before
            if config.get(group) is None:
                raise ValueError(f"{group} is there with nothing in it: give it fields, or leave it out.")
        import_modules(config.imports)
        if config.compile:
            lookup("backend of torch.compile", config.compile, dict.fromkeys([*list_backends(), "aot_eager", "eager"]))
        for name in ("run_dir", "init_from", "ckpt_path"):  # which a shell does not after `=`, nor YAML
            if config.get(name):
                config[name] = str(Path(config[name]).expanduser())
        self.resumed = config.get("ckpt_path") or None
        run_dir = Path(config.run_dir) if config.run_dir else None
        if self.subcommand != "fit" and self.resumed is None:
            self.resumed = config.ckpt_path = self.trained(run_dir)
        own = None  # the run that is resumed
        if self.resumed is not None and Path(self.resumed).parent.name == CHECKPOINTS:
            own = Path(self.resumed).parents[1]
        there = run_dir or own
        if there is not None and self.subcommand == "fit":
            leave_no_trace(there, made=not there.exists())
        run_dir = there or new_folder()
        same = own is not None and own.resolve() == run_dir.resolve()
        if self.resumed and "init_from" in named(self.arguments):  # in a run's own file it says where that came from
            raise ValueError("--init_from starts a training and --ckpt_path continues one: give one of them.")
        if self.subcommand == "fit" and not same and latest_checkpoint(run_dir) is not None:
            raise ValueError(
                f"{run_dir} holds a run already. Continue it: {self.parser.prog} resume {shlex.quote(str(run_dir))}. "
                f"Or choose another --run_dir."
            )
        config.run_dir = str(run_dir)
        if self.subcommand == "fit" and config.init_from and not self.resumed:
            self.keep_grid(config.init_from, config.model.vit)
        precision = str(config.trainer.precision)
        if self.subcommand == "fit" and precision in ("16-true", "transformer-engine-float16"):
            raise ValueError(
                f"precision {precision} has weights and gradients in fp16 without a loss scale, where they vanish or "
                f"overflow within some steps: take bf16-mixed, 16-mixed or bf16-true."
            )
        if self.subcommand != "fit":
            self.save_config_callback = None  # the run's own configuration stays, for `resume`
            warnings.filterwarnings("ignore", message="Be aware that when using `ckpt_path`")  # of training's

    def keep_grid(self, path: str, vit: Any) -> None:
        """Weights trained at another size bring the grid that their positions and log N refer to."""
        theirs = grid_of(config_of(read_checkpoint(path)))
        if vit.position_grid is None and theirs != grid_of(ViTConfig(**vit.as_dict())):
            vit.position_grid = theirs
            size = " x ".join(map(str, theirs))
            rank_zero_info(f"Positions and log N refer to the {size} patches that {path} was trained on.")

    def trained(self, run_dir: Path | None) -> str:
        """What `validate` and `test` take unless told: the run's last checkpoint, and never fresh weights."""
        latest = None if run_dir is None else latest_checkpoint(run_dir)
        if latest is None:
            raise ValueError(
                f"{self.subcommand} needs a trained model: the configuration of a run that has a checkpoint, --config "
                f"RUN/config.yaml (and --ckpt_path FILE for another one than its last)."
            )
        return str(latest)

    def after_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        if self.resumed is not None:
            fit, content = self.subcommand == "fit", read_checkpoint(self.resumed)
            check_same_model(self.resumed, content, dict(self.model.hparams), fit)
            if fit:
                check_same_class(self.resumed, content, type(self.model).__qualname__)
            if fit and not config.ema:
                check_no_average(self.resumed, content)
        elif config.init_from:
            start_from(config.init_from, self.model)
        if config.compile:
            self.model.vit.compile(backend=config.compile)

    def after_fit(self) -> None:
        """A run that another callback stopped, or that was killed in its last validation, has that left."""
        trainer = self.trainer
        for record in [c for c in trainer.callbacks if isinstance(c, Record)]:  # type: ignore[attr-defined]
            if not (record.complete(trainer) or out_of_time(trainer)):
                trainer.validate(self.model, datamodule=self.datamodule, verbose=False)
                record.write(trainer, self.model)

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        config = self.config[self.subcommand]
        run_dir = Path(config.run_dir)
        given = {**self._get(self.config_init, "trainer", default={}), **kwargs}
        callbacks: list[Callback] = [CheckData(), WholeEpochs(), StepSeed(int(config.seed_everything))]
        if self.subcommand == "fit":
            callbacks += [
                HoldRun(run_dir),
                ShowTraceback(),
                ModelFigures(),
                ValidateAtEnd(),
                GradientNorm(),
                Throughput(),
            ]
            callbacks += [EMAWeightAveraging(decay=config.ema, use_buffers=False)] if config.ema else []
            callbacks.append(CleanStop(run_dir / CHECKPOINTS, self.parser.prog))  # after the average has seen the step
            callbacks.append(Record(self.parser.dump(self.config), run_dir / METRICS, self.parser.prog))
            callbacks.append(History(run_dir / HISTORY, self.arguments, self.parser.prog))
            if given["enable_checkpointing"] is not False:
                best: dict[str, Any] = {"filename": "best", "monitor": "val/accuracy", "mode": "max"}
                callbacks.append(MovableCheckpoint(run_dir / CHECKPOINTS, enable_version_counter=False, **best))
                callbacks.append(LastCheckpoint(run_dir / CHECKPOINTS, config.checkpoint_every))
        if given["max_time"] is not None:
            callbacks.append(JobTimer(given.pop("max_time")))
        given["default_root_dir"] = given["default_root_dir"] or run_dir  # for want of a logger
        asked = {name: x if isinstance(x := given[name] or [], list) else [x] for name in ("callbacks", "plugins")}
        has_bar = any(isinstance(callback, ProgressBar) for callback in asked["callbacks"])
        if given["enable_progress_bar"] is not False and not has_bar:
            callbacks.append(TQDMProgressBar(refresh_rate=1 if sys.stderr.isatty() else 50, leave=True))
        if self.subcommand == "fit" and given["logger"] is not False:
            callbacks.append(LearningRateMonitor("step"))
        given["callbacks"], given["plugins"] = [*callbacks, *asked["callbacks"]], [WholeFiles(), *asked["plugins"]]
        if given["logger"] is None or given["logger"] is True:  # a test leaves the run's curves as they are
            fit = self.subcommand == "fit"
            given["logger"] = fit and TensorBoardLogger(run_dir, name="", version="", default_hp_metric=False)
        return self._instantiate_trainer(given, [])
