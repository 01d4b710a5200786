"""The sweep over sizes as a picture: coverage against the size of the draft vocabulary, SVG.

What enters: the steps of a sweep. What leaves: the text of an SVG file of a few kB, without fonts,
scripts or links. It promises an axis that begins where the data does, and says so in its labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, log

from eagle3_data.draft.coverage import Step

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 120, 24, 48
COLOURS = ("#1b6ca8", "#c0562f", "#3d8b3d", "#7a4fa3", "#8a6d1f", "#555555")


def svg(steps: Sequence[Step], chosen: int) -> str:
    """The picture. `chosen`: the size that was asked for, marked by a line."""
    lines = {"all": [step.coverage for step in steps]}
    for name in steps[-1].by_phase:
        lines[name] = [step.by_phase[name] for step in steps]
    lowest = min(min(values) for values in lines.values())
    floor_at = min(floor(lowest * 20) / 20, 0.95)  # a twentieth below, so that lines do not touch
    left, right = log(steps[0].size), log(steps[-1].size)

    def x(size: int) -> float:
        part = (log(size) - left) / (right - left) if right > left else 0.0
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        part = (value - floor_at) / (1 - floor_at)
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        "<title>Share of supervised tokens inside the draft vocabulary</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for n in range(5):
        value = floor_at + (1 - floor_at) * n / 4
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"'
            ' stroke="#dddddd"/>'
        )
        parts.append(_text(LEFT - 6, y(value) + 4, f"{value:.2%}".replace(".00", ""), "end"))
    for step in steps:
        parts.append(_text(x(step.size), HEIGHT - BOTTOM + 18, _short(step.size), "middle"))
    parts.append(
        f'<line x1="{x(chosen):.1f}" x2="{x(chosen):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"'
        ' stroke="#999999" stroke-dasharray="4 3"/>'
    )
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "draft vocabulary", "middle"))
    for n, (name, values) in enumerate(lines.items()):
        colour = COLOURS[n % len(COLOURS)]
        points = " ".join(
            f"{x(step.size):.1f},{y(value):.1f}" for step, value in zip(steps, values, strict=True)
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(_text(WIDTH - RIGHT + 12, TOP + 12 + 18 * n, name, "start", colour))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333333") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">'
        f"{escape(text)}</text>"
    )


def _short(size: int) -> str:
    return f"{size / 1000:.0f}k" if size >= 1000 else str(size)
