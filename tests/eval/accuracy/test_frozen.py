"""k-NN and linear probes of frozen features: against plain definitions, and as commands on images of other classes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from eval.accuracy.frozen import Features
from eval.accuracy.knn import knn
from eval.accuracy.probe import choose, fit, loss_and_gradient, score, start
from eval.cli import main
from performer_string import Preprocessing, ViT, ViTConfig
from tests.helpers.checkpoints import CONFIG, read, save
from train.data.module import ImageData

CPU = torch.device("cpu")


def clusters(count: int, spread: float, seed: int = 0, classes: int = 3) -> Features:
    """Features of images around one centre for each class, the last one constant."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    centres = torch.randn(classes, 5, generator=torch.Generator().manual_seed(9))
    values = 2 + centres[labels] + spread * torch.randn(count, 5, generator=generator)
    return Features(torch.cat([values, torch.full((count, 1), 7.0)], 1), labels)


def plain_knn(fitted, query, k, temperature):
    """The class of the largest sum of exp(s / temperature) over the k nearest."""
    similar = [float(F.cosine_similarity(query, each, dim=0)) for each in fitted.values]
    votes: dict[int, float] = {}
    for index in sorted(range(len(similar)), key=lambda i: -similar[i])[:k]:
        label = int(fitted.labels[index])
        votes[label] = votes.get(label, 0.0) + math.exp(similar[index] / temperature)
    return max(votes, key=lambda label: votes[label])


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (7, 0.02), (7, 10.0), (99, 0.07)])
def test_votes_of_the_nearest(k, temperature, monkeypatch):
    monkeypatch.setattr("eval.accuracy.knn.SIMILARITIES", 100)  # several chunks
    fitted, found = clusters(30, 1.5), clusters(40, 1.5, seed=1)
    answers = knn(fitted, found.values, 3, k, temperature, CPU)
    assert answers.tolist() == [plain_knn(fitted, query, k, temperature) for query in found.values]
    assert len(set(answers.tolist())) == 3


def test_a_low_temperature_leaves_the_nearest_alone():
    fitted, found = clusters(30, 1.5), clusters(40, 1.5, seed=1)
    alone = knn(fitted, found.values, 3, 1, 1.0, CPU)
    assert torch.equal(knn(fitted, found.values, 3, 20, 1e-6, CPU), alone)  # exp(s / 1e-6) would be infinite
    assert not torch.equal(knn(fitted, found.values, 3, 20, 1.0, CPU), alone)


def test_the_gradient_of_a_probe():
    fitted = clusters(20, 1.0)
    x = fitted.values.double()
    weights = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    loss = F.cross_entropy(x @ weights[:, :-1].T + weights[:, -1], fitted.labels)
    loss = loss + 0.3 / 2 * weights[:, :-1].square().sum()
    loss.backward()
    value, gradient = loss_and_gradient(weights.detach(), x, fitted.labels, 0.3)
    torch.testing.assert_close(value, loss.detach())
    torch.testing.assert_close(gradient, weights.grad)


@pytest.mark.parametrize("penalty", [1e-3, 1.0])
def test_a_probe_has_the_lowest_loss_in_standardised_features(penalty):
    """Found again by Newton's method, whose Hessian comes from autograd."""
    fitted = clusters(30, 1.5)
    probe = fit(start(fitted, 3, CPU), fitted, penalty)
    x = fitted.values.double()
    x = (x - x.mean(0)) / x.std(0, correction=0).where(x.std(0) > 0, torch.ones(6, dtype=torch.float64))

    def loss(flat):
        weights = flat.view(3, 7)
        return F.cross_entropy(x @ weights[:, :-1].T + weights[:, -1], fitted.labels) + penalty / 2 * (
            weights[:, :-1].square().sum()
        )

    flat = torch.zeros(21, dtype=torch.float64)
    for _ in range(30):
        gradient = torch.func.grad(loss)(flat)
        flat = flat - torch.linalg.pinv(torch.func.hessian(loss)(flat)) @ gradient
    torch.testing.assert_close(probe.weight, flat.view(3, 7)[:, :-1], atol=1e-4, rtol=1e-3)
    logits = x @ flat.view(3, 7)[:, :-1].T + flat.view(3, 7)[:, -1]
    torch.testing.assert_close(probe.logits(fitted.values).softmax(1), logits.softmax(1), atol=1e-4, rtol=1e-3)


def test_the_penalty_is_chosen_on_validation_images():
    fitted, validation = clusters(12, 2.0), clusters(300, 2.0, seed=3)
    penalties = [1e-6, 1e-3, 0.3, 100.0]
    scores = {penalty: score(fit(start(fitted, 3, CPU), fitted, penalty), validation) for penalty in penalties}
    probe, penalty, accuracy = choose(start(fitted, 3, CPU), fitted, validation, penalties)
    assert penalty == max(scores, key=lambda each: scores[each])
    assert penalty == 0.3
    assert accuracy == pytest.approx(scores[0.3][0])
    assert score(probe, validation)[1] == pytest.approx(scores[0.3][1], abs=1e-4)
    _, penalty, accuracy = choose(start(fitted, 3, CPU), fitted, None, [1e-3])
    assert (penalty, accuracy) == (1e-3, None)


@pytest.fixture
def folder(tmp_path):
    """Images of two classes that differ in brightness, with train and val."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 20), ("val", 6)):
        for name, low in (("dark", 0), ("light", 128)):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(low, low + 128, (30, 40), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "images" / split / name / f"{number}.png")
    return tmp_path / "images"


@pytest.mark.parametrize("name", ["knn", "probe"])
def test_images_of_other_classes(tmp_path, folder, capsys, name):
    """The model has four classes, of arrows."""
    run = save(tmp_path / "run").parents[1]
    main([name, str(run), "--folder", str(folder), "--resolutions", "60", "72x60"])
    _, rows = read(run / "results" / f"{name}.csv")
    assert [row["resolution"] for row in rows] == [row["fitted at"] for row in rows] == ["60", "72x60"]
    for row in rows:
        assert (row["images"], row["split"], row["majority baseline"]) == ("12", "test", "50.0")
        assert (row["training images"], row["features"]) == ("36", "16")  # a tenth is held out
        assert float(row["accuracy"]) >= 70
    assert "36 training images" in capsys.readouterr().out
    main(["plot", str(run / "results" / f"{name}.csv"), "--format", "svg"])
    assert (run / "results" / f"{name}.svg").exists()


def test_one_training_size_for_all(tmp_path, folder, monkeypatch):
    run, seen = save(tmp_path / "run").parents[1], []
    forward = ViT.forward_features
    monkeypatch.setattr(
        ViT, "forward_features", lambda vit, x, *rest: (seen.append(tuple(x.shape[2:])), forward(vit, x, *rest))[1]
    )
    command = ["probe", str(run), "--folder", str(folder), "--penalties", "0.1", "--images", "4"]
    main([*command, "--resolutions", "60", "84", "--fit_at", "72"])
    _, rows = read(run / "results" / "probe.csv")
    assert [(row["resolution"], row["fitted at"], row["val accuracy"]) for row in rows] == [
        ("60", "72", ""),
        ("84", "72", ""),
    ]
    assert list(dict.fromkeys(seen)) == [(72, 72), (60, 60), (84, 84)]


def test_a_backbone_without_classes(tmp_path, folder):
    model = ViT(ViTConfig(variant="micro", image_size=24, patch_size=12, num_classes=0)).eval()
    model.preprocessing = Preprocessing(mean=(0.5,) * 3, std=(0.5,) * 3)
    model.save_pretrained(tmp_path / "own")
    main(["knn", str(tmp_path / "own"), "--folder", str(folder), "--out", str(tmp_path / "out")])
    assert read(tmp_path / "out" / "knn.csv")[1][0]["resolution"] == "24"


def test_images_of_the_training(tmp_path):
    """Generated ones: the arrows of the training set are the neighbours."""
    run = save(tmp_path / "run").parents[1]
    main(["knn", str(run), "--train_images", "24", "--images", "8", "--k", "3"])
    (row,) = read(run / "results" / "knn.csv")[1]
    assert (row["training images"], row["images"], row["k"]) == ("24", "8", "3")
    main(["knn", str(run), "--train_images", "12", "--images", "8"])  # fewer than the 20 of the default
    assert read(run / "results" / "knn.csv")[1][0]["k"] == "12"


def test_a_probe_of_a_model_without_validation_images(tmp_path, folder, capsys, monkeypatch):
    """It has no images to choose a penalty by, which is said before any features are computed."""
    data = ImageData("folder", root=str(folder), size=[60, 60], grey=True, val_fraction=0.0, workers=0, batch_size=8)
    data.setup()
    run = save(tmp_path / "run", replace(CONFIG, num_classes=2), data).parents[1]
    monkeypatch.setattr(ViT, "forward_features", None)
    with pytest.raises(SystemExit, match="2"):
        main(["probe", str(run)])
    monkeypatch.undo()
    assert "run was trained without validation images, by which one of 8 penalties" in capsys.readouterr().err
    main(["probe", str(run), "--penalties", "0.1"])
    (row,) = read(run / "results" / "probe.csv")[1]
    assert (row["training images"], row["val accuracy"]) == ("40", "")


def test_a_probe_that_has_not_converged_says_so(tmp_path, folder, capsys, monkeypatch):
    monkeypatch.setattr("eval.accuracy.probe.STEPS", 1)
    command = ["probe", str(save(tmp_path / "run")), "--folder", str(folder), "--resolutions", "60", "--penalties"]
    main([*command, "1e-6"])
    assert "run: the probe of the penalty 1e-06 needs more than 1 steps." in capsys.readouterr().err
    monkeypatch.undo()
    main([*command, "1"])
    assert "needs more than" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--split", "train"], "these images are what features are compared with"),
        (["--root", "elsewhere"], "--root is the place of the training's images"),
        (["--resolutions", "61"], "61"),
    ],
)
def test_what_is_refused(tmp_path, folder, capsys, options, message):
    with pytest.raises(SystemExit, match="2"):
        main(["knn", str(save(tmp_path / "run")), "--folder", str(folder), *options])
    assert message in capsys.readouterr().err
