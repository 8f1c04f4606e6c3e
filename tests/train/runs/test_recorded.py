"""What a run has recorded of itself."""

from __future__ import annotations

import json

import pytest

from train.runs import slurm
from train.runs.history import append_history, read_history
from train.runs.recorded import held_out_images, trained_by


def test_images_that_a_run_was_validated_on():
    config = {"source": "folder", "val_fraction": 0.1}
    data = {"config": config, "files": 80, "val_split": False}
    assert held_out_images({"ImageData": data}) == 8
    own = {**data, "val_split": True}
    assert held_out_images({"ImageData": {**own, "val_files": 60}}) == 60
    assert held_out_images({"ImageData": own}) is None  # of a checkpoint that did not count them


def test_a_run_that_went_on_elsewhere_names_each_device(tmp_path):
    common = {
        "command": "python -m train fit --config train/configs/demo.yaml",
        "code": "x",
        "versions": "torch 2.11.0",
    }
    lines = [{**common, "device": device} for device in ("H200", "H200", "CPU")]
    for count, expected in (
        (1, []),
        (2, ["resumed once, the first command is above"]),
        (3, ["then on: CPU (torch 2.11.0)", "resumed 2 times, the first command is above"]),
    ):
        (tmp_path / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:count]))
        command, environment = trained_by(tmp_path)
        assert command == common["command"]
        assert environment == ["code: x", "device: H200", "versions: torch 2.11.0", *expected]


def test_what_a_command_begins_with_is_named(tmp_path):
    """Since the folder of a published model has neither the recipe nor the weights of another run."""
    begins = "--init_from /r/soft/checkpoints/last.ckpt --model.distillation.teacher=/r/soft"
    line = {**LINE, "command": f"python -m train fit --config /r/soft/config.yaml {begins}"}
    (tmp_path / "history.jsonl").write_text(json.dumps(line) + "\n")
    command, environment = trained_by(tmp_path)
    begins = "--init_from soft --model.distillation.teacher=soft"
    assert command == f"python -m train fit --config soft/config.yaml {begins}"
    assert environment[0] == "the command needs soft/config.yaml and soft, which are not in this folder"


def test_options_of_later_commands_are_recorded(tmp_path):
    begun = "python -m train fit --config train/configs/demo.yaml"
    resumed = "python -m train resume runs/a"
    commands = (begun, resumed, f"{resumed} --trainer.max_epochs 5", resumed, f"{resumed} --trainer.max_epochs 5")
    with (tmp_path / "history.jsonl").open("w") as file:
        file.writelines(json.dumps({**LINE, "command": command}) + "\n" for command in commands)
    command, environment = trained_by(tmp_path)
    assert command == begun
    times, *later = environment[-2:]
    assert times == "resumed 4 times, the first command is above"
    assert later == [f"resumed by: {resumed} --trainer.max_epochs 5"]


LINE = {"command": "fit a", "expanded": "fit a", "code": "x", "device": "CPU", "versions": "torch 2"}


@pytest.mark.parametrize("cut", ['{"began": "2026', "\0\0\0\0\n", '{"command": "\udcff"'])
def test_history_whose_last_line_was_cut_off(tmp_path, monkeypatch, cut):
    whole = json.dumps(LINE) + "\n"
    path = tmp_path / "history.jsonl"
    path.write_text(whole + cut, errors="surrogateescape")
    assert read_history(tmp_path) == [LINE]
    monkeypatch.setattr(slurm, "job", lambda: "7")
    assert slurm.is_requeued(tmp_path, "fit a")
    append_history(path, {"command": "resume"})  # a further line does not continue that one
    assert path.read_text() == whole + '{"command": "resume"}\n'


def test_history_that_is_damaged_is_named(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text(f'{{"began"\n{json.dumps(LINE)}\n')
    with pytest.raises(ValueError, match=rf"line 1 of {path} is no JSON"):
        read_history(tmp_path)


def test_history_without_a_last_line_break_is_continued(tmp_path):
    path = tmp_path / "history.jsonl"
    append_history(path, LINE)
    path.write_text(path.read_text().rstrip())
    append_history(path, LINE)
    assert read_history(tmp_path) == [LINE, LINE]
