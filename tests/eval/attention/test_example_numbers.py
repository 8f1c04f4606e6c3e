"""The number of a test image is that of the data set in every evaluation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from PIL import Image

from eval.cli import main
from tests.helpers.checkpoints import CONFIG, read, save
from tests.helpers.tiny_images import write_mnist
from train.data.module import ImageData


def test_an_example_is_the_image_that_confusion_numbers(tmp_path):
    write_mnist(tmp_path, 40)
    data = ImageData("mnist", str(tmp_path), val_size=4, size=[24, 24], workers=0, batch_size=8)
    data.setup("test")
    run = save(tmp_path / "run", replace(CONFIG, image_size=24, num_classes=10), data).parents[1]
    out = tmp_path / "out"
    main(["confusion", str(run), "--out", str(out)])
    (answers,) = out.glob("confusion/predictions-*.csv")
    order = [int(row["image"]) for row in read(answers)[1]]
    assert order != sorted(order)  # in one fixed random order
    chosen = read(answers)[1][order.index(3)]
    main(["attention", str(run), "--example", "3", "--out", str(out)])
    row = read(out / "attention.csv")[1][0]
    assert row["image"] == f"test image 3: {chosen['truth']}"
    shown, _ = data.held_out("test", [24, 24])[order.index(3)]
    assert np.array_equal(np.asarray(Image.open(out / "pictures" / row["picture"])), shown[0].numpy())
