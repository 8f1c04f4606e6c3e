"""What a run has recorded of itself."""

from __future__ import annotations

import json

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
