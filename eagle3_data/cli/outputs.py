"""`--output FORMAT=PATH`: what is asked for, refused before the work when it can not be written.

What enters: the texts of the option. What leaves: `Output`s with a known format and a place.
It promises that two outputs never share a place, that standard output is given out once, and that
no input is an output.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3_data.cli.faults import UsageFault
from eagle3_data.writing import refuse_unwritable

STDOUT = "-"


@dataclass(frozen=True, slots=True)
class Output:
    """One report in one format; `path` is None for standard output."""

    format: str
    path: Path | None


def parse(
    texts: Sequence[str], formats: Collection[str], *, overwrite: bool, inputs: Sequence[Path]
) -> list[Output]:
    """Outputs in the order given. Raises UsageFault or OutputError with the next step."""
    outputs: list[Output] = []
    taken: set[Path | None] = set()
    for text in texts:
        name, equals, place = text.partition("=")
        if not equals or not place:
            raise UsageFault(f"--output {text}: write it as FORMAT=PATH, e.g. json=report.json")
        if name not in formats:
            raise UsageFault(
                f"--output {text}: no format {name!r}: choose one of {', '.join(formats)}"
            )
        path = None if place == STDOUT else Path(place).expanduser()
        key = None if path is None else path.resolve()
        if key in taken:
            where = "standard output" if key is None else str(path)
            raise UsageFault(f"--output {text}: two outputs go to {where}: give each its own place")
        taken.add(key)
        if path is not None:
            refuse_inputs(path, inputs)
            refuse_unwritable(path, overwrite=overwrite)
        outputs.append(Output(name, path))
    return outputs


def refuse_inputs(path: Path, inputs: Sequence[Path]) -> None:
    """Raise UsageFault when `path` is one of the files being checked, under whatever name."""
    for source in inputs:
        if path.exists() and source.exists() and path.samefile(source):
            raise UsageFault(
                f"{path} is an input of this run: choose another name, inputs are never replaced"
            )
