"""What measures make of the files of a run."""

from __future__ import annotations

import torch

from eval.papers.measures import epoch_seconds
from eval.papers.results import Results


def test_seconds_of_an_epoch_count_all_processes_and_accumulated_batches(tmp_path):
    """Two epochs of 10 batches of 16 images on each of 2 processes, in 6 steps: 640 images at 32 a second."""
    loop = {
        "epoch_loop.batch_progress": {"total": {"completed": 20}},
        "state_dict": {"combined_loader": [{"epoch": 1, "batches": 10, "size": 320, "step": 32}]},
    }
    data = {"config": {"batch_size": 16}}
    rest = {"hyper_parameters": {}, "state_dict": {}}
    (tmp_path / "checkpoints").mkdir()
    content = {"epoch": 1, "global_step": 6, "loops": {"fit_loop": loop}, "ImageData": data, **rest}
    torch.save(content, tmp_path / "checkpoints" / "last.ckpt")
    (tmp_path / "metrics.csv").write_text("step,seconds,train/images_per_second\n0,1,32\n5,20,32\n")
    assert epoch_seconds(Results({}, torch.device("cpu")), tmp_path) == (10.0, 2)
