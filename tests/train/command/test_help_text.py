"""The help of `fit`: short enough to read, and with every option."""

from __future__ import annotations

import re

import pytest

from train import cli
from train.command import parser
from train.command.help_text import compact, first_sentence, shorter
from train.data.tasks import TASKS


def test_help_of_fit_names_every_option_once(capsys, monkeypatch):
    whole: list[str] = []
    monkeypatch.setattr(parser, "compact", lambda text, program: whole.append(text) or compact(text, program))
    with pytest.raises(SystemExit):
        cli.main(["fit", "--help"])
    output = capsys.readouterr().out
    told = [line.strip().split(", ")[-1] for line in output.splitlines() if re.match("  -[^ ]", line)]
    names = [
        re.findall(r"--[\w.]+(?![\w.+])", line.split("  ")[1]) for line in whole[0].splitlines() if line[:3] == "  -"
    ]
    options = [each[0] for each in names]
    assert len(options) > 100
    groups = {"--trainer", "--model.vit", "--model.optim", "--model.distillation", "--model.loss", "--data"}
    hidden = groups | {f"--data.{task}" for task in TASKS}
    linked = {"--data.seed", "--data.size"}
    expected = [name for name in options if name not in hidden | linked and not name.endswith(".help")]
    assert sorted(told) == sorted(expected)


def test_help_of_fit_is_readable(capsys):
    with pytest.raises(SystemExit):
        cli.main(["fit", "--help"])
    output = capsys.readouterr().out
    places = [
        output.index(f"\n  {name}\n") for name in ("--run_dir", "--model.vit.depth", "--data.root", "--trainer.devices")
    ]
    assert places == sorted(places)
    assert output.index("usage: python -m train fit --config RECIPE.yaml") == 0
    assert "known subclasses" not in output
    assert "Path to a configuration file" not in output
    assert len(output.splitlines()) < 700  # argparse's has 1,175


def test_help_of_test_names_the_run(capsys):
    with pytest.raises(SystemExit):
        cli.main(["test", "--help"])
    assert capsys.readouterr().out.startswith("usage: python -m train test RUN [--FIELD VALUE ...]")


def test_help_is_the_same_in_a_narrow_terminal(capsys, monkeypatch):
    """But for the ends of its lines, none of which lies within a word."""
    words = []
    for columns in (34, 50, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit):
            cli.main(["fit", "--help"])
        words.append(capsys.readouterr().out.split())
    assert words[0] == words[1] == words[2]
    assert "torch.set_float32_matmul_precision" in words[0]


def test_help_says_what_a_flag_is_and_what_is_loaded(capsys):
    with pytest.raises(SystemExit):
        cli.main(["test", "--help"])
    output = " ".join(capsys.readouterr().out.split())
    assert "--dry_run say what fit would do and how long it takes, after a few steps, and create nothing (a f" in output
    assert "--weights_only load no more than tensors and plain values" in output


@pytest.mark.parametrize(
    ("description", "sentence"),
    [
        ("Stop at this epoch. Unlimited if -1. (type: Optional[int], default: null)", "Stop at this epoch"),
        (
            "Devices, e.g. two. More. Default: ``1``. (type: Union[list[int], int], default: 1)",
            "Devices, e.g. two (default: 1)",
        ),
        ("Add one. Default: ``None``. (type: Union[X, null], default: null, known subclasses: a.B)", "Add one"),
    ],
)
def test_first_sentence_and_default(description, sentence):
    assert first_sentence(description) == sentence


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("a width (type: int | null, default: null)", "a width (int)"),
        ("a folder (type: str, default: )", "a folder (str)"),
        ("of a kind (type: Optional[Literal['a', 'b']], default: null)", "of a kind (Literal['a', 'b'])"),
        ("sizes (type: list[int], default: [])", "sizes (list[int], default: [])"),
        ("stop early (default: False)", "stop early (a flag, without a value)"),
    ],
)
def test_shorter_types(description, expected):
    assert shorter(description) == expected
