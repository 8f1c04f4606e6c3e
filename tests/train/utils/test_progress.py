"""Progress of loops: lines in log files, with the time that is left, and a bar on a terminal."""

from __future__ import annotations

import io
import sys

import pytest
from tqdm import tqdm

from train.utils import progress as module
from train.utils.progress import LINES, Loop, note, progress, say_result


class Clock:
    """A clock that is set by hand, in seconds."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(LINES, "clock", clock)
    monkeypatch.setattr(LINES, "loops", [])
    monkeypatch.setattr(module, "FIRST", 10.0)
    return clock


def lines(capsys) -> list[str]:
    """Return the lines that were written since the last call, which are on stderr alone."""
    written = capsys.readouterr()
    assert written.out == ""
    return written.err.splitlines()


def test_a_line_after_ten_seconds_and_then_each_minute(clock, capsys):
    for step in progress(range(100), "one at 168"):
        said = lines(capsys)
        # Step 5 begins when five steps are done, after 10 s.
        assert said == {
            5: ["one at 168: 5% (5 of 100), 0:03:10 left"],
            35: ["one at 168: 35% (35 of 100), 0:02:10 left"],
            65: ["one at 168: 65% (65 of 100), 0:01:10 left"],
            95: ["one at 168: 95% (95 of 100), 0:00:10 left"],
        }.get(step, [])
        clock.now += 2.0
    assert lines(capsys) == []


def test_short_commands_write_nothing(clock, capsys):
    for _ in range(9):  # each of them is a command of its own
        for _ in progress(range(3), "one"):
            say_result("a result")
            clock.now += 3.0
    assert lines(capsys) == []


def test_the_time_left_is_by_the_costs_of_the_steps(clock, capsys):
    with progress(total=3, desc="models", costs=[1.0, 4.0, 5.0]) as outer:
        clock.now += 20.0
        outer.update()
        assert lines(capsys) == ["models: 10% (1 of 3), 0:03:00 left"]
        with progress(total=8, desc="one at 60") as inner:
            clock.now += 60.0
            inner.update(6)  # 1 + 4 * 6/8 of 10 is done in 80 s
    assert lines(capsys) == ["models: 40% (1 of 3), 0:02:00 left; one at 60: 75% (6 of 8), 0:00:20 left"]


def test_a_loop_of_unknown_costs_counts_whole_steps(clock, capsys):
    with progress(total=2, desc="models"), progress(total=8, desc="one at 60") as inner:
        clock.now += 60.0
        inner.update(6)
    assert lines(capsys) == ["models: 0% (0 of 2); one at 60: 75% (6 of 8), 0:00:20 left"]


def test_results_are_written_at_once_but_for_those_of_the_first_seconds(clock, capsys):
    with progress(only_lines=True):  # has no line of its own
        say_result("first")
        clock.now += 9.0
        say_result("second")
        assert lines(capsys) == []
        clock.now += 2.0
        say_result("third")
        assert lines(capsys) == ["first", "second", "third"]
        clock.now += 1.0
        say_result("fourth")
        say_result("")
        assert lines(capsys) == ["fourth"]
    with progress(total=4, desc="next", unit="image") as bar:
        say_result("held back")
        clock.now += 12.0
        bar.update(2)
        assert lines(capsys) == ["held back", "next: 50% (2 of 4), 0:00:12 left"]


def test_a_loop_that_an_error_ends_has_no_later_lines(clock, capsys):
    outer = progress(total=2, desc="outer")

    def fail():
        with outer:
            for _ in progress(range(3), "inner"):
                raise ValueError("no such luck")

    with pytest.raises(ValueError, match="no such luck"):
        fail()
    clock.now += 100.0
    outer.update()
    assert LINES.loops == []
    assert lines(capsys) == []


def test_other_processes_of_a_training_are_silent(clock, capsys, monkeypatch):
    for first in (False, True):
        monkeypatch.setattr(module, "is_first_process", lambda first=first: first)
        with progress(total=2, desc="images") as bar:
            clock.now += 11.0
            bar.update()
        assert lines(capsys) == (["images: 50% (1 of 2), 0:00:11 left"] if first else [])


def test_the_end_of_a_loop_has_no_line(clock, capsys):
    """The next thing that is known is its result."""
    with progress(total=2, desc="models"):
        for _ in progress(range(1), "one at 60"):
            clock.now += 100.0
        assert lines(capsys) == []


def test_text_at_the_end_and_loops_of_unknown_length(clock, capsys):
    with progress((n for n in range(3)), "runs") as bar:
        assert isinstance(bar, Loop)
        clock.now += 11.0
        bar.set_postfix_str("one: 45%")
    assert lines(capsys) == ["runs: 0, one: 45%"]


def test_a_bar_on_a_terminal_and_no_lines(clock, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    bar = progress(range(3), "models", costs=[1, 2, 3], unit="model")
    assert isinstance(bar, tqdm)
    for _ in bar:
        clock.now += 100.0
        say_result("a result")
        note("one is left out")
    for _ in progress(range(3), "no bar", only_lines=True):
        clock.now += 100.0
    shown = terminal.getvalue()
    assert "models:   0%" in shown
    assert shown.count("one is left out\n") == 3
    assert "a result" not in shown
    assert "no bar" not in shown
    assert "left;" not in shown


def test_closed_stderr(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    for _ in progress(range(3), "models"):
        clock.now += 100.0
