"""`extract`: the target's hidden states over shards, for training a drafter.

What enters: a folder of shards, a target model, a folder. What leaves: the states in the folder,
what the self-check saw on stdout, an exit code. It promises that what can not fit is refused before
the target is loaded, and that the same command after a stop goes on behind what is whole.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3_data.cli import console, options
from eagle3_data.cli.faults import Exit, UsageFault

if TYPE_CHECKING:
    from eagle3_data.draft.extract import Extraction


class Dtype(StrEnum):
    """What the target computes in."""

    AUTO = "auto"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class Backend(StrEnum):
    """What runs the target."""

    TRANSFORMERS = "transformers"
    VLLM = "vllm"


class Compress(StrEnum):
    """How states are packed, always without loss."""

    AUTO = "auto"
    NONE = "none"
    ZSTD = "zstd"


def extract(
    shards: Annotated[
        Path, typer.Argument(metavar="SHARDS", help="Folder of shards that convert wrote.")
    ],
    target: Annotated[
        str, typer.Option("--target", metavar="MODEL", help="Folder of the target model.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="STATES", help="Folder for the states.")
    ],
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="Layers whose outputs are kept; 1, N/2-1, N-4 unless set."
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", metavar="NAME", help="Only samples of this split.")
    ] = None,
    min_grade: Annotated[
        str | None,
        typer.Option("--min-grade", metavar="GRADE", help="Only samples of this grade or better."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Only the first N samples.")
    ] = None,
    dtype: Annotated[
        Dtype, typer.Option(help="What the target computes in; as its weights are unless set.")
    ] = Dtype.AUTO,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="auto spreads over all GPUs; cpu, cuda:1, …")
    ] = "auto",
    batch_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most tokens of a batch, padding included.")
    ] = 8192,
    compress: Annotated[
        Compress, typer.Option(help="Packing without loss; auto measures on the first file.")
    ] = Compress.AUTO,
    backend: Annotated[
        Backend, typer.Option(help="transformers, or a vLLM that extracts hidden states.")
    ] = Backend.TRANSFORMERS,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", metavar="URL", help="Where that vLLM serves the target."),
    ] = None,
    light_check: Annotated[
        bool,
        typer.Option(
            "--light-check", help="With vllm: do not load the target here to check the states."
        ),
    ] = False,
    any_tokenizer: Annotated[
        bool,
        typer.Option(
            "--any-tokenizer", help="Go on when the target's tokenizer files are not the shards'."
        ),
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that lies in the target's folder.")
    ] = False,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Extract hidden states. Exit 0: written and sound, 1: the self-check found errors, 2: refused.

    \b
    Examples:
      eagle3-data extract shards/ --target ./Qwen3-8B -o states/
      eagle3-data extract shards/ --target ./Qwen3-8B -o states/ --layers 1,17,32 --limit 100
    """
    from eagle3_data.draft.needs import need_torch

    need_torch("extract")
    from eagle3_data.draft.extract import Choice, refuse_early
    from eagle3_data.draft.extract import extract as run
    from eagle3_data.draft.forward import Source, load
    from eagle3_data.draft.packing import Packing
    from eagle3_data.shards.reader import open_shards

    if (backend is Backend.VLLM) != (base_url is not None):
        raise UsageFault("--backend vllm and --base-url URL go together: give both, or none")
    if light_check and base_url is None:
        raise UsageFault("--light-check is for --backend vllm: leave it out")
    opened = open_shards(shards)
    choice = Choice(
        layers=numbers(layers),
        split=split,
        min_grade=min_grade,
        limit=limit,
        batch_tokens=batch_tokens,
        packing=None if compress is Compress.AUTO else Packing(compress.value),
        any_tokenizer=any_tokenizer,
    )
    refuse_early(opened, target, out, choice)
    source: Source
    if light_check and base_url is not None:
        from eagle3_data.draft.engine import connect

        source = connect(base_url, target)
    else:
        if not quiet:
            console.note(f"loading {target}")
        source = forward = load(
            target, dtype=dtype.value, device=device, trust_remote_code=trust_remote_code
        )
        if base_url is not None:
            from eagle3_data.draft.engine import connect

            source = connect(base_url, target, checker=forward)
    if not quiet and not source.target.tokenizer_hash:
        console.note(
            f"note: {target} holds no tokenizer, so only the self-check tells whether the ids of"
            " the shards are its own"
        )
    with console.progress(not quiet) as progress:
        done = run(
            opened,
            source,
            out,
            choice,
            overwrite=overwrite,
            progress=progress,
            told=None if quiet else console.note,
        )
    if not quiet:
        for text in done.notes:
            console.note(f"note: {text}")
    if json:
        console.data(_described(done, out))
    else:
        console.result(console.visible("\n".join(_told(done, out))))
    raise typer.Exit(Exit.CLEAN if done.sound else Exit.FINDINGS)


def numbers(text: str | None) -> tuple[int, ...] | None:
    """The layers of --layers. Raises UsageFault."""
    if text is None:
        return None
    try:
        # in order: engines sort the ids they read, and a drafter must learn that order
        return tuple(sorted(int(part) for part in text.split(",")))
    except ValueError:
        raise UsageFault(
            f"--layers {text}: write numbers with commas, for example 1,14,26"
        ) from None


def _told(done: Extraction, out: Path) -> list[str]:
    """The outcome for a person."""
    seen = done.checked
    lines = []
    if done.manifest is not None:
        found = done.manifest
        head = "was complete, read and checked again" if done.again else "is complete"
        layers = ", ".join(map(str, found.layers.output_of))
        engine = ", ".join(map(str, found.layers.vllm))
        lines += [
            f"{out} {head}: {found.samples:,} samples, {found.tokens:,} tokens,"
            f" {len(found.files)} files",
            f"  outputs of layers {layers} (vLLM and speculators call them {engine}), and the final"
            f" state {'behind' if found.final_norm == 'post' else 'before'} the last norm",
            f"  {found.stored_bytes / 1e6:,.1f} MB, {found.stored_bytes / found.raw_bytes:.2f} of"
            f" the raw bytes ({found.packing.value})",
        ]
    else:
        lines.append(f"{out} is not finished: the self-check found errors, the run was stopped")
    if seen.asked:
        lines.append(
            f"  self-check: the head finds {seen.right / seen.asked:.3f} of {seen.asked:,} sampled"
            f" tokens; {seen.alone} samples alone give the same states (largest distance"
            f" {seen.distance:.4f})"
            if done.sound
            else f"  self-check: the head finds {seen.right / seen.asked:.3f} of {seen.asked:,}"
            " sampled tokens"
        )
    for finding in done.findings:
        rule = finding.rule
        lines.append(
            f"{finding.code} {rule.name} ({rule.severity.value}) at {finding.at or rule.at}"
        )
        lines.append(f"  {finding.place.name}: {finding.detail}")
    if done.findings:
        lines.append(f"Next: eagle3-data rule {done.findings[0].code}    what it means, what to do")
    return lines


def _described(done: Extraction, out: Path) -> dict[str, Any]:
    return {
        "directory": str(out),
        "complete": done.manifest is not None,
        "sound": done.sound,
        "checked": done.checked.to_dict(),
        "findings": [finding.to_dict() for finding in done.findings],
        "manifest": None if done.manifest is None else done.manifest.model_dump(mode="json"),
        "notes": list(done.notes),
    }
