"""The demo begins with the models of the repository."""

from eval import demo
from tests.helpers.checkpoints import read, save
from train.publish import main as publish


def test_the_demo_begins_with_models_of_the_repository(tmp_path, monkeypatch, capsys):
    zoo = tmp_path / "models"
    monkeypatch.setattr(demo, "PUBLISHED", zoo)
    monkeypatch.setattr(demo, "SIZES", ("60", "84"))
    demo.show_published(tmp_path / "out")
    assert capsys.readouterr().out == ""  # where only the wheel is installed
    for name in ("arrow-linear", "arrow-softmax", "mnist-linear"):
        run = save(tmp_path / "runs" / name).parents[1]
        publish([str(run), str(zoo / name), "--skip_test"])
    capsys.readouterr()
    demo.show_published(tmp_path / "out", images=4)
    assert "| arrow-softmax" in capsys.readouterr().out
    _, rows = read(tmp_path / "out" / "resolution.csv")
    found = [(row["model"], row["resolution"], row["images"]) for row in rows]
    assert found == [(name, size, "4") for name in ("arrow-linear", "arrow-softmax") for size in ("60", "84")]
