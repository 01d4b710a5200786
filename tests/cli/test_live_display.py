"""The display of a capture: counts, rates, what is left; silent but for some lines elsewhere."""

from __future__ import annotations

import io
import re
import sys
import time

import pytest

from eagle3_data.capture.watch import Tally
from eagle3_data.cli import console
from eagle3_data.cli.live_display import Display, display, duration


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_holds_everything_there_is_to_know() -> None:
    clock = Clock()
    seen = Tally(
        rows=110, records=110, with_reasoning=99, cut=11, graded=110, exact=55,
        codes={"CAP001": 11, "GEN005": 2}, unjudged=3,
    )  # fmt: skip
    shown = Display(1000, done=400, tally=lambda: seen, clock=clock)
    clock.now += 10
    for _ in range(110):
        shown.row(tokens=200)
    shown.error("timeout")
    shown.error("429")
    shown.error("429", final=True)
    assert shown.line() == (
        "510 of 1,000 rows · 1 given up · 11.0 rows/s · 2,200 tokens/s · 44 s left"
        " · reasoning 90.0% · cut 10.0% · grade A 50.0% · 3 rows not looked at"
        " · CAP001 11 · GEN005 2 · 429 2 · timeout 1"
    )
    assert [line.split("   ")[0] for line in shown.text().splitlines()] == [
        "510 of 1,000 rows",
        "reasoning 90.0%",
        "CAP001 11",
    ]


def test_a_rate_is_of_the_last_minute_and_the_last_one_of_the_whole_run() -> None:
    clock = Clock()
    shown = Display(None, clock=clock)
    for _ in range(120):  # two minutes at 10 rows a second, looked at every second
        clock.now += 1
        for _ in range(10):
            shown.row()
        shown.line()
    assert "10.0 rows/s" in shown.line()
    for _ in range(70):  # the server hangs
        clock.now += 1
        shown.line()
    assert "rows/s" not in shown.line()
    assert "left" not in shown.line()
    assert shown.summary() == "1,200 rows · 6.3 rows/s · in 3 min"


def test_many_kinds_are_summed() -> None:
    shown = Display()
    for number in range(10):
        for _ in range(20 - number):
            shown.error(f"kind{number}")
    assert shown.line().endswith("kind5 15 · others 50")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (95, "2 min"), (11_100, "3 h 05 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("total", "lines"), [(100, 1), (2000, 20), (400_000, 2), (None, 2)])
def test_without_a_terminal_a_line_now_and_then_and_one_at_the_end(
    total: int | None, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with display(total) as shown:
        for _ in range(min(total or 2000, 2000)):
            shown.row()
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == lines + 1
    assert re.search(r"rows · [\d,.]+ rows/s · in 0 s$", err)


def test_a_run_that_stored_nothing_and_a_quiet_one_say_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with display(100):
        pass
    with display(100, quiet=True) as shown:
        for _ in range(1000):
            shown.row()
    assert shown.stored == 1000
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_it_moves_at_the_foot_and_ends_as_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with display(200) as shown:
        for _ in range(100):
            shown.row(tokens=5)
        shown.error("\x1b[31mhostile")
        time.sleep(0.4)
        console.note("a remark above it")
    said = terminal.getvalue()
    assert "100 of 200 rows" in said and "a remark above it" in said
    assert "\x1b[31mhostile" not in said and "\\x1b[31mhostile" in said
    last = said.splitlines()[-1]
    assert re.search(r"100 of 200 rows · .* · in [01] s$", last)


def test_a_row_costs_next_to_nothing() -> None:
    shown = Display(10**9, line_every=10**9)
    best = 1.0
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(10_000):
            shown.row(tokens=100)
        best = min(best, time.perf_counter() - begun)
    assert best / 10_000 < 5e-6
