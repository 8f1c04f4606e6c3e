"""`python -m eval locality`: radii against a plain loop, memory against a count by hand, and the files it writes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eval.__main__ import main
from eval.locality import radius
from eval.measure import peak_bytes
from performer_string import ViT, grid_positions
from performer_string.layers.backends import LinearBackend
from tests.helpers.checkpoints import CONFIG, read, save
from train.checkpoint import load_trained

CPU = torch.device("cpu")
QUICK = ["--resolutions", "60", "84", "--images", "8", "--tokens", "16", "64", "--rounds", "5", "--probes", "2"]


def test_radius_is_its_formula():
    weights, positions = torch.rand(2, 3, 12, 12, dtype=torch.float64), grid_positions((3, 4), dtype=torch.float64)
    weights[1, 2, 5] = 0  # a query that nothing answers to
    for h, found in enumerate(radius(weights, positions)):
        means = []
        for b in range(2):
            for i in range(12):
                w = weights[b, h, i]
                if w.sum() > 0:
                    means.append(sum(w[j] * (positions[i] - positions[j]).norm() for j in range(12)) / w.sum())
        assert float(found) == pytest.approx(float(sum(means) / len(means)))


def test_radius_of_what_is_known():
    positions = grid_positions((9, 1))
    assert radius(torch.eye(9)[None, None], positions).tolist() == [0.0]
    neighbours = ((positions[:, 0, None] - positions[:, 0]).abs() == 1).float()
    assert radius(neighbours[None, None], positions).tolist() == [1.0]
    assert radius(2.5 * neighbours[None, None], positions).tolist() == [1.0]  # an amplitude does not matter


def test_memory_is_that_of_the_tensors_alive():
    x, unit = torch.randn(100, 100), 100 * 100 * 4

    def call():
        a = x * 2  # 1 unit
        b = a + x  # 2
        c = b.mT  # a view
        a = torch.cat([c, c])  # 4, and then 3
        del b, c  # 2
        return (a[:100] - x).sum()  # 3

    assert peak_bytes(call, CPU) == pytest.approx(4 * unit, rel=0.01)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_memory_of_attention_grows_as_it_should(attention):
    """A forward pass by the number of tokens, weights in full by its square."""
    peaks = []
    for side in (8, 16):
        vit = ViT(replace(CONFIG, attention=attention)).eval()
        image = torch.randn(1, 1, 12 * side, 12 * side)
        with torch.inference_mode():
            peaks.append(peak_bytes(lambda vit=vit, image=image: vit(image), CPU))
    assert peaks[1] / peaks[0] == pytest.approx(4, rel=0.3)  # torch's fused softmax keeps no weights either
    weights = []
    for tokens in (64, 256):
        q = torch.randn(1, 2, tokens, 8)
        attend = LinearBackend(8, 2, "arc-cosine", 0, num_features=8)
        weights.append(peak_bytes(lambda q=q, attend=attend: attend.weights(q, q), CPU))
    assert weights[1] / weights[0] == pytest.approx(16, rel=0.3)


def test_the_report(tmp_path, capsys):
    focused = {"locality": "gaussian", "locality_options": {"sigma": 1.5, "amplitude": 0.5}, "pool": "cls"}
    paths = [save(tmp_path / "plain"), save(tmp_path / "focused", replace(CONFIG, depth=2, **focused))]
    main(["locality", "--checkpoint", *map(str, paths), *QUICK])
    said = capsys.readouterr().out
    header, rows = read(tmp_path / "results" / "locality.csv")
    assert header[0].startswith("# command: python -m eval locality --checkpoint")
    assert (tmp_path / "results" / "locality.png").stat().st_size > 10000

    def some(**wanted):
        return [row for row in rows if all(row[k] == v for k, v in wanted.items())]

    main(["resolution", "--checkpoint", *map(str, paths), *QUICK[:5], "--out", str(tmp_path)])
    accuracies = [(r["model"], r["resolution"], float(r["accuracy"])) for r in read(tmp_path / "resolution.csv")[1]]
    assert [(r["model"], r["resolution"], float(r["value"])) for r in some(part="accuracy")] == accuracies
    for model in ("plain", "focused"):
        assert [r["tokens"] for r in some(model=model, quantity="milliseconds")] == ["16", "64"]
        peaks = [float(r["value"]) for r in some(model=model, quantity="peak MiB")]
        assert 0 < peaks[0] < peaks[1]
    assert not some(model="plain", quantity="sigma")
    heads = [(str(layer), str(head)) for layer in range(2) for head in range(2)]
    for quantity in ("sigma", "amplitude", "attention radius", "effective radius"):
        assert [(r["layer"], r["head"]) for r in some(model="focused", quantity=quantity)] == heads
    assert {float(r["value"]) for r in some(quantity="sigma")} == {1.5}
    assert {float(r["value"]) for r in some(quantity="amplitude")} == {0.5}
    plain = [
        [float(r["value"]) for r in some(model="plain", quantity=f"{k} radius")] for k in ("attention", "effective")
    ]
    assert plain[0] == plain[1]
    for a, e in zip(*[some(model="focused", quantity=f"{k} radius") for k in ("attention", "effective")], strict=True):
        assert float(e["value"]) < float(a["value"])  # lambda brings it in
    # an untrained model attends almost uniformly
    uniform = float(radius(torch.ones(1, 1, 25, 25), grid_positions((5, 5))))
    assert float(some(model="plain", quantity="uniform")[0]["value"]) == pytest.approx(uniform, rel=1e-4)
    table = [[cell.strip() for cell in row.split("|")[1:-1]] for row in said.splitlines() if row.startswith("|")]
    titles = ["model", "% at 60 px", "% at 84 px", "ms, 64 tokens", "MiB, 64 tokens"]
    assert table[0] == [*titles, "uniform", "attention radius", "effective radius", "sigma"]
    assert [row[0] for row in table[2:]] == ["plain", "focused"]
    assert [row[-1] for row in table[2:]] == ["none", "1.5 (1.5-1.5)"]


def test_the_measured_radius_is_of_the_patches_and_their_lambda(tmp_path):
    """Against weights taken by hand, prefix tokens left out."""
    config = replace(CONFIG, locality="exponential", locality_options={"sigma": 0.8}, pool="cls", attention="softmax")
    path = save(tmp_path / "one", config)
    main(["locality", "--checkpoint", str(path), *QUICK])
    row = next(r for r in read(tmp_path / "one" / "results" / "locality.csv")[1] if r["quantity"] == "effective radius")
    trained = load_trained(path)
    vit, held_out = trained.classifier.vit, trained.data.held_out("test", (60, 60))
    images = trained.data.normalise(torch.stack([held_out[i][0] for i in range(2)]))
    seen = []
    vit.blocks[0].attention.backend.register_forward_pre_hook(
        lambda m, args, kw: seen.append((args, kw)), with_kwargs=True
    )
    with torch.no_grad():
        vit(images)
        (q, k, _), given = seen[0]
        q, k = given["rotation"].rotate(q), given["rotation"].rotate(k)
        weights = (q @ k.mT / 8**0.5).softmax(-1)[:, 0, 1:, 1:]
        distance = torch.cdist(grid_positions((5, 5)), grid_positions((5, 5)))
        weights = weights * (-distance / 0.8).exp()
    expected = ((weights * distance).sum(-1) / weights.sum(-1)).mean()
    assert float(row["value"]) == pytest.approx(float(expected), rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "100", "200"], "a square grid, like 196, not '200'"),
        (["--tokens", "many"], "a square grid, not 'many'"),
        (["--rounds", "1"], "a median needs at least 5 rounds, not 1"),
        (["--resolutions", "90"], "90 x 90 pixels is not divisible"),
    ],
)
def test_bad_arguments(tmp_path, arguments, message, capsys):
    path = str(save(tmp_path / "one"))
    with pytest.raises(SystemExit) as stop:
        main(["locality", "--checkpoint", path, *QUICK, *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "one" / "results").exists()
