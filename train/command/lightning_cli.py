"""The commands `fit`, `validate` and `test`: Lightning's command line with a YAML file, overridden by options."""

from __future__ import annotations

import atexit
import shlex
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback, WeightAveraging
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only

from performer_string.models.files.paths import find_checkpoint
from performer_string.utils.files import check_writable
from train._compat import AskedSettingsCLI
from train.callbacks.checkpoints import AtomicCheckpoints
from train.callbacks.defaults import clock_callbacks, data_callbacks, saving_callbacks, training_callbacks
from train.callbacks.early_stopping import after_early_stop
from train.callbacks.records import FinalMetrics
from train.callbacks.stopping import out_of_time
from train.checkpoint import check_no_average, check_same_class, check_same_model
from train.checkpoint_file import read_checkpoint
from train.command import setting_checks
from train.command.data_sizes import take_data_sizes
from train.command.dry_run import report
from train.command.find_lr import range_test
from train.command.master_port import check_port
from train.command.options import FIT, FLAGS, OPTIONS
from train.command.recipe import current_arguments, options_of
from train.command.results import print_results
from train.command.resumed import check_same_training, keep_split
from train.data.image_checks import check_images
from train.data.sizes import Size
from train.data.tasks import holds_out
from train.runs import slurm
from train.runs.folder import clean_up, latest_checkpoint, make_run_folder, name_run_folder, run_of
from train.runs.loggers import keep_tensorboard, training_loggers
from train.sharding import NAME, Sharded, check_sharded
from train.start import keep_grid, start_from
from train.utils.imports import import_modules


class TrainingCLI(AskedSettingsCLI):
    """The commands `fit`, `validate` and `test` of an `ImageClassifier` on `ImageData`.

    Args:
        model, data: classes of the module and the data module.
        typed: command as typed by the user, for the history of a run.
        args: arguments of the command line, beginning with the command.
        options: options of Lightning's `LightningCLI`.
    """

    def __init__(self, model: type, data: type, *, typed: str, args: list[str], **options: Any):
        self.typed = typed
        self.asked, self.ended = args[0], ""  # and why a run that is resumed has nothing left to train
        super().__init__(model, data, args=args, **options)

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Return only the requested command, since building each parser takes long."""
        return {self.asked: LightningCLI.subcommands()[self.asked]}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        if self.asked == "fit":
            parser.description = FIT  # in place of Lightning's
        for name, option in OPTIONS.items():
            parser.add_argument(f"--{name}", type=option.type, default=option.default, help=option.help)
        for name, text in FLAGS.items():
            parser.add_argument(f"--{name}", action="store_true", help=text)
        parser.link_arguments("seed_everything", "data.seed", compute_fn=setting_checks.check_seed)
        parser.link_arguments("seed_everything", "model.vit.seed", compute_fn=setting_checks.check_seed)
        parser.link_arguments("model.vit.image_size", "data.size", compute_fn=lambda size: list(Size.of(size)))
        parser.link_arguments(
            ("model.vit.image_size", "data.resolutions"),
            "model.resolutions",
            compute_fn=lambda size, more: list(dict.fromkeys(str(Size.of(each)) for each in [size, *more])),
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.arguments: list[str] = args
        super().parse_arguments(parser, current_arguments(args))

    def before_instantiate_classes(self) -> None:
        """Check the settings as a whole, and choose the folder and the checkpoint of a run."""
        config, fits = self.config[self.subcommand], self.subcommand == "fit"
        setting_checks.check_groups(config)
        import_modules(config.imports)
        setting_checks.check_command(self.subcommand, config)
        for name in ("run_dir", "init_from", "ckpt_path"):  # shells do not expand ~ after `=`, nor does YAML
            if config.get(name):
                config[name] = str(Path(config[name]).expanduser())
        if config.get("init_from"):
            config.init_from = str(find_checkpoint(config.init_from))
        if not (holds_out(config.data.source, config.data.val_fraction) or config.data.watch_test):
            config.trainer.limit_val_batches = 0
        if fits and any(each.startswith("--trainer.logger+=") for each in self.arguments):
            keep_tensorboard(config.trainer)
        self.choose_checkpoint(config)
        self.choose_folder(config)
        if not fits:
            self.save_config_callback = None  # keep the run's configuration, for `resume`
            config.verbose = "verbose" in dict(options_of(self.arguments))  # Lightning's table, beside ours
            warnings.filterwarnings("ignore", message="Be aware that when using `ckpt_path`")  # expected here
            return
        take_data_sizes(config, self.arguments)
        if config.init_from and (self.requeued or not self.resumed):
            keep_grid(config.init_from, config.model.vit)
        setting_checks.check_trainer(config.trainer)
        setting_checks.warn_of_intervals(config.trainer)
        if config.trainer.strategy == NAME:
            check_sharded(config)

    def choose_checkpoint(self, config: Any) -> None:
        """Set the checkpoint from which a run is resumed, also for a job that SLURM requeued.

        Raises:
            ValueError: a test without a trained model, or a training run with two starting points.
        """
        fits, run_dir = self.subcommand == "fit", Path(config.run_dir) if config.run_dir else None
        if not fits and not config.ckpt_path:  # never untrained weights
            latest = None if run_dir is None else latest_checkpoint(run_dir)
            if latest is None:
                raise ValueError(
                    f"{self.subcommand} needs a trained model: a run that has a checkpoint, {self.subcommand} runs/NAME"
                    f" (and --ckpt_path FILE for another one than its last)."
                )
            config.ckpt_path = str(latest)
        if fits and config.ckpt_path and "init_from" in dict(options_of(self.arguments)):  # a run's file may have both
            raise ValueError("--init_from starts a training and --ckpt_path continues one: give one of them.")
        command = f"{self.parser.prog} {shlex.join(self.arguments)}"
        if fits and not config.ckpt_path:
            run_dir = run_dir or slurm.run_folder(command)
            config.run_dir = "" if run_dir is None else str(run_dir)
        again = config.if_run_exists == "resume" and not config.ckpt_path
        if again and run_dir is None:
            raise ValueError("--if_run_exists resume needs --run_dir, the same folder each time.")
        self.requeued = fits and run_dir is not None and (again or slurm.is_requeued(run_dir, command))
        if self.requeued and run_dir is not None and (latest := latest_checkpoint(run_dir)):
            config.ckpt_path = str(latest)
        self.resumed: str | None = config.ckpt_path or None

    def choose_folder(self, config: Any) -> None:
        """Set the folder of the run: the given one, the checkpoint's, or a new one for `fit`.

        Raises:
            ValueError: a folder with another run, or one that cannot be written to.
        """
        fits, resumed_run = self.subcommand == "fit", run_of(Path(self.resumed)) if self.resumed else None
        folder = Path(config.run_dir) if config.run_dir else resumed_run
        goes_on = folder and resumed_run and resumed_run.resolve() == folder.resolve()
        writes = not (config.dry_run or config.find_lr)
        if writes and fits and folder and not goes_on and latest_checkpoint(folder):
            raise ValueError(
                f"{folder} holds a run already. Continue it: {self.parser.prog} resume {shlex.quote(str(folder))}. "
                f"Or choose another --run_dir. One command that starts and continues a run: --if_run_exists resume."
            )
        if not writes:
            config.run_dir = str(folder or name_run_folder())
            return
        first, new = not rank_zero_only.rank, folder is None or not folder.exists()  # type: ignore[attr-defined]
        if first and (fits or folder is None):  # the other processes write nothing
            folder = folder or make_run_folder()
            check_writable("--run_dir", folder)
            atexit.register(clean_up, folder, new)  # until the training begins
        config.run_dir = str(folder or Path("runs"))

    def after_instantiate_classes(self) -> None:
        config, fits = self.config[self.subcommand], self.subcommand == "fit"
        if self.resumed is not None:
            content = read_checkpoint(self.resumed)
            check_same_model(self.resumed, content, dict(self.model.hparams), fits)
            keep_split(content["ImageData"], self.datamodule, config.data)
            self.datamodule.pixels.load(content["ImageData"])  # or they would be measured again
            if fits:
                check_same_class(self.resumed, content, type(self.model).__qualname__)
            callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
            if fits and not any(isinstance(each, WeightAveraging) for each in callbacks):
                check_no_average(self.resumed, content)
            if fits:
                check_same_training(self.resumed, content, self)
                folder, asked = Path(config.run_dir), config.trainer.as_dict()
                self.ended = after_early_stop(folder, content, self.trainer, asked, self.parser.prog)
        elif config.init_from:
            start_from(config.init_from, self.model, self.datamodule)
        if config.matmul_precision is not None:
            torch.set_float32_matmul_precision(config.matmul_precision)
        if config.compile:
            self.model.vit.compile(backend=config.compile)

    def before_fit(self) -> None:
        """Check the images for `--check_data`, and describe the training for `--dry_run`."""
        config = self.config[self.subcommand]
        if self.ended:
            rank_zero_info(self.ended)
            raise SystemExit(0)
        setting_checks.check_one_process(config, self.trainer.world_size)
        if config.dry_run and not self.trainer.is_global_zero:
            raise SystemExit(0)  # the first process describes it
        if config.check_data:
            check_images(self.datamodule)
        if config.dry_run:
            there = "which holds a run already" if latest_checkpoint(Path(config.run_dir)) else "new"
            folder = f"{config.run_dir}, {f'which goes on from {self.resumed}' if self.resumed else there}"
            print(report(self.trainer, self.model, self.datamodule, config.trainer.as_dict(), folder))
            raise SystemExit(0)
        if config.find_lr:
            print(range_test(self.model, self.datamodule, config.trainer.as_dict()))
            raise SystemExit(0)

    def after_fit(self) -> None:
        """Validate and write the metrics if another callback, or a kill in the last validation, prevented that."""
        trainer = self.trainer
        for record in [c for c in trainer.callbacks if isinstance(c, FinalMetrics)]:  # type: ignore[attr-defined]
            if record.was_finished(trainer):
                record.say_finished(trainer)
            elif not (record.complete(trainer) or out_of_time(trainer)):
                trainer.validate(self.model, datamodule=self.datamodule, verbose=False)
                record.write(trainer, self.model)

    def after_validate(self) -> None:
        print_results(self.trainer, "val")

    def after_test(self) -> None:
        print_results(self.trainer, "test")

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Return a trainer with this project's callbacks around those of the configuration."""
        config, fits, program = self.config[self.subcommand], self.subcommand == "fit", self.parser.prog
        asked: dict[str, Any] = {**self.config_init[self.subcommand]["trainer"], **kwargs}
        more = {name: x if isinstance(x := asked[name] or [], list) else [x] for name in ("callbacks", "plugins")}
        own, plugins = more["callbacks"], more["plugins"]
        first, last = data_callbacks(config), list[Callback]()
        if fits:
            texts = (self.parser.dump(self.config), self.typed, f"{program} {shlex.join(self.arguments)}")
            first += training_callbacks(config, asked, own, program, *texts)
            last += saving_callbacks(config, asked, plugins, program)
        trainer = super().instantiate_trainer(
            strategy=Sharded() if config.trainer.strategy == NAME else asked["strategy"],
            callbacks=[*first, *clock_callbacks(asked, own), *own, *last],
            plugins=[AtomicCheckpoints(), *plugins],
            logger=training_loggers(asked["logger"], config) if fits else asked["logger"] or False,
            max_time=None,
            enable_model_summary=False,  # a table of metrics, without the operations
            default_root_dir=asked["default_root_dir"] or config.run_dir,  # used without a logger
        )
        slurm.check_processes(trainer)
        check_port(trainer)
        return trainer
