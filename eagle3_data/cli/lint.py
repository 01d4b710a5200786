"""`lint`: will a drafter load in each engine, and will it be right?

What enters: the folder of a drafter, and its target. What leaves: findings, the layers that each
engine reads, a line an engine, an exit code; with `--fix` a corrected copy. It promises that
nothing is changed in place.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from eagle3_data.cli import console, options


class Engine(StrEnum):
    """The engines that a drafter is judged for."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llama.cpp"


def lint(
    draft: Annotated[
        Path, typer.Argument(metavar="DRAFT", help="Folder of a drafter: config.json, safetensors.")
    ],
    target: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="Target model: its folder or config.json."),
    ] = None,
    engine: Annotated[
        list[Engine] | None,
        typer.Option(help="Judge for this engine only (repeatable): it must load and be right."),
    ] = None,
    fix: Annotated[
        Path | None,
        typer.Option("--fix", metavar="DIR", help="Write a corrected copy to this new folder."),
    ] = None,
    ignore: options.Ignore = None,
    output: options.Output = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    exit_zero: options.ExitZero = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Judge a drafter's files for vLLM, SGLang and llama.cpp. Exit 0: no errors, 1: errors.

    \b
    Examples:
      eagle3-data lint ./drafter --target ./Kimi-K2-Thinking
      eagle3-data lint ./drafter --target ./target --engine vllm
      eagle3-data lint ./drafter --target ./target --fix ./mended
    """
    from eagle3_data.cli.findings import conclude
    from eagle3_data.draft.engines import LLAMACPP, SGLANG, VLLM
    from eagle3_data.draft.lint import lint as judge

    names = {Engine.VLLM: VLLM, Engine.SGLANG: SGLANG, Engine.LLAMACPP: LLAMACPP}
    left_out = [code for text in ignore or [] for code in text.split(",") if code.strip()]
    if fix is not None:
        from eagle3_data.draft.mend import mend

        changes = mend(draft, fix, target)
        if not quiet:
            for change in changes or ["nothing to change, copied as it is"]:
                console.note(f"fix: {change}")
            console.note(f"wrote {fix}: the report is about it")
    found = judge(draft if fix is None else fix, target)
    if engine:
        found = found.serving([names[one] for one in engine])
    conclude(
        found.without(left_out),
        output,
        json=json,
        overwrite=overwrite,
        exit_zero=exit_zero,
        quiet=quiet,
    )
