"""`finetune`: states of a target become a drafter that vLLM, SGLang and llama.cpp load.

What enters: a folder of states (of shards with --online), a mapping or a drafter to start from,
options, a folder. What leaves: the drafter in it, a display on stderr, one line on stdout, an exit
code. It promises that a run stopped at any moment goes on with --resume and ends as if nothing had
happened.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from eagle3_data.cli import console, options
from eagle3_data.cli.choices import interruptible
from eagle3_data.cli.faults import Exit, UsageFault

if TYPE_CHECKING:
    from eagle3_data.draft.extract import Choice
    from eagle3_data.draft.online import Online
    from eagle3_data.draft.states import States


Opened = TypeVar("Opened", "States", "Online")


class Device(StrEnum):
    """Where the tensors live."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Dtype(StrEnum):
    """Number format."""

    BF16 = "bf16"
    FP32 = "fp32"


class LayerIds(StrEnum):
    """In which meaning layer ids are written."""

    INPUT = "input"
    OUTPUT = "output"


ALL = "all"
"""The word of --split that means no choice."""

LINES = 20
"""Lines that a run prints in all, about, where no terminal is."""

Target = Annotated[
    Path | None,
    typer.Option(metavar="MODEL", help="Folder of the target; where extract found it unless set."),
]


def finetune(
    states: Annotated[
        Path,
        typer.Argument(
            metavar="STATES", help="Folder of states that extract wrote; of shards with --online."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DRAFT", help="Folder for the drafter.")
    ],
    mapping: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Draft vocabulary of a new drafter: what vocab wrote."),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(metavar="DRAFT", help="Drafter to train on; its own mapping is kept."),
    ] = None,
    target: Target = None,
    online: Annotated[
        bool,
        typer.Option("--online", help="Make the states of shards while training, without a disk."),
    ] = False,
    layers: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="With --online: layers, as extract takes them."),
    ] = None,
    any_tokenizer: Annotated[
        bool, typer.Option("--any-tokenizer", help="With --online: as extract takes it.")
    ] = False,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code", help="With --online: run code that lies in the target's folder."
        ),
    ] = False,
    split: Annotated[
        str, typer.Option(metavar="NAME", help="Train on this split; all for every one.")
    ] = "train",
    min_grade: Annotated[
        str | None, typer.Option(metavar="GRADE", help="Only samples of this grade or better.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=3, metavar="N", help="Only samples of at most N tokens.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Times over the samples.")] = 4,
    drafts: Annotated[
        int, typer.Option(min=1, metavar="K", help="Draft steps that are trained.")
    ] = 3,
    decay: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Weight of step k is this to the k.")
    ] = 0.8,
    lr: Annotated[
        float | None,
        typer.Option(min=0.0, help="Highest learning rate (1e-3; with --init 1e-4)."),
    ] = None,
    warmup: Annotated[
        int, typer.Option(min=0, metavar="N", help="Optimizer steps until the highest rate.")
    ] = 30,
    batch_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tokens packed together at once.")
    ] = 2048,
    accumulate: Annotated[
        int, typer.Option(min=1, metavar="N", help="Packs of one optimizer step, on each process.")
    ] = 1,
    clip: Annotated[
        float, typer.Option(min=0.0, help="Largest norm of a gradient, 0 for any.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of new weights and of the order.")] = 0,
    norm_before_residual: Annotated[
        bool, typer.Option("--norm-before-residual", help="The residual is the normed state.")
    ] = False,
    norm_before_fc: Annotated[
        bool, typer.Option("--norm-before-fc", help="One norm over the states side by side.")
    ] = False,
    fc_norm: Annotated[
        bool, typer.Option("--fc-norm", help="A norm for each auxiliary state.")
    ] = False,
    norm_output: Annotated[
        bool, typer.Option("--norm-output", help="The normed state is fed back (EAGLE 3.1).")
    ] = False,
    with_embedding: Annotated[
        bool, typer.Option("--with-embedding", help="Export the target's embedding too.")
    ] = False,
    layer_ids: Annotated[
        LayerIds,
        typer.Option(
            help="Layer ids in config.json: input to a layer (vLLM, llama.cpp), or output of one"
            " (SGLang builds that add one)."
        ),
    ] = LayerIds.INPUT,
    dtype: Annotated[Dtype, typer.Option(help="Numbers of the exported weights.")] = Dtype.BF16,
    compute: Annotated[Dtype, typer.Option(help="Numbers of the matrix products.")] = Dtype.BF16,
    device: Annotated[Device, typer.Option(help="Where to train.")] = Device.AUTO,
    save_every: Annotated[
        int, typer.Option(min=1, metavar="N", help="Optimizer steps between saved states.")
    ] = 200,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Metrics for TensorBoard too.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run ended.")] = False,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Train an EAGLE-3 drafter on the states of its target.

    \b
    Examples:
      eagle3-data finetune states/ -o drafter/ --mapping mapping/
      eagle3-data finetune states/ -o tuned/ --init ./Kimi-K2-eagle3 --epochs 1
      eagle3-data finetune shards/ -o drafter/ --mapping mapping/ --online --target ./Qwen3-8B
      torchrun --nproc-per-node 8 -m eagle3_data finetune states/ -o drafter/ --mapping mapping/
    """
    from eagle3_data.draft.needs import need_torch

    need_torch("finetune")
    from eagle3_data.cli.extract import numbers
    from eagle3_data.draft.extract import Choice
    from eagle3_data.draft.finetune import Start
    from eagle3_data.draft.finetune import finetune as train
    from eagle3_data.draft.states import open_states
    from eagle3_data.draft.target import target_of
    from eagle3_data.draft.train import Settings

    picked: States | Online
    for name, given in (
        ("--layers", layers is not None),
        ("--any-tokenizer", any_tokenizer),
        ("--trust-remote-code", trust_remote_code),
    ):
        if given and not online:
            raise UsageFault(f"{name} is for --online: for stored states `extract` took it")
    if online:
        live = straight(
            states,
            target,
            Choice(layers=numbers(layers), any_tokenizer=any_tokenizer),
            device=device.value,
            trust_remote_code=trust_remote_code,
            quiet=quiet,
        )
        picked = chosen(live, split, min_grade, max_length)
    else:
        picked = chosen(open_states(states), split, min_grade, max_length)
    flags = {
        "norm_before_residual": norm_before_residual,
        "norm_before_fc": norm_before_fc,
        "fc_norm": fc_norm,
        "norm_output": norm_output,
    }
    for name, source in (("--target", target), ("--init", init)):
        if source is not None and Path(source).resolve() == out.resolve():
            raise UsageFault(f"{out} is the folder of {name}, which a run would write over")
    settings = Settings(
        epochs=epochs,
        steps=drafts,
        batch_tokens=batch_tokens,
        accumulate=accumulate,
        lr=lr if lr is not None else (1e-4 if init else 1e-3),
        warmup=warmup,
        decay=decay,
        clip=clip,
        seed=seed,
        bf16=compute is Dtype.BF16,
    )
    last: dict[str, Any] = {}
    with interruptible() as cancel, display(not quiet) as shown:

        def told(row: dict[str, Any], total: int) -> None:
            last.update(row)
            shown(row, total)

        ended = train(
            picked,
            out,
            target=target_of(picked.identity, target),
            start=Start(mapping, init, flags),
            settings=settings,
            device=device.value,
            dtype=dtype.value,
            with_embedding=with_embedding,
            ids_of_outputs=layer_ids is LayerIds.OUTPUT,
            save_every=save_every,
            tensorboard=tensorboard,
            go_on=resume,
            overwrite=overwrite,
            stop=cancel.is_set,
            told=told,
            note=lambda text: None if quiet else console.note(f"note: {text}"),
        )
    if not ended:
        console.note(f"{out}: stopped after step {last.get('step', 0)}; --resume goes on")
        raise typer.Exit(Exit.INTERRUPTED)
    if os.environ.get("RANK", "0") != "0":
        return  # under torchrun the first process speaks for all
    if json:
        console.data({"out": str(out), "last": last})
    else:
        console.result(f"{out}: {_said(last)}" if last else f"{out}: complete")


def straight(
    shards: Path,
    target: Path | None,
    choice: Choice,
    *,
    device: str,
    trust_remote_code: bool,
    quiet: bool,
) -> Online:
    """Shards whose states are made when they are asked for. Raises UsageFault, StatesError."""
    from eagle3_data.draft.extract import refuse_tokenizer
    from eagle3_data.draft.forward import load
    from eagle3_data.draft.online import online
    from eagle3_data.draft.target_identity import tokenizer_digest
    from eagle3_data.shards.reader import open_shards

    if target is None:
        raise UsageFault("--online runs the target: name its folder with --target")
    if "RANK" in os.environ:
        raise UsageFault("--online is for one process: extract first, then train with torchrun")
    opened = open_shards(shards)
    refuse_tokenizer(opened, str(target), tokenizer_digest(target), choice)
    if not quiet:
        console.note(f"loading {target}; each sample of {shards} is forwarded once in each epoch")
    loaded = load(str(target), device=device, trust_remote_code=trust_remote_code)
    made = online(opened, loaded, choice)
    if not quiet:
        seen = made.checked
        console.note(f"self-check: the head finds {seen.right} of {seen.asked} sampled tokens")
        for found in made.findings:
            console.note(f"{found.code} {found.rule.name}: {found.detail}")
    return made


def chosen(opened: Opened, split: str, min_grade: str | None, max_length: int | None) -> Opened:
    """The samples that the options leave. Raises UsageFault when they leave none."""
    picked = opened.where(
        split=None if split == ALL else split, min_grade=min_grade, max_length=max_length
    )
    if not len(picked):
        there = ", ".join(sorted(opened.index["split"].unique().to_list()))
        raise UsageFault(
            f"{opened.directory} has no sample of this choice (--split {split}); its splits are"
            f" {there}: name one of them, or --split {ALL}"
        )
    return picked


Shown = Callable[[dict[str, Any], int], None]


@contextmanager
def display(wanted: bool) -> Iterator[Shown]:
    """Takes rows of metrics: on a terminal the newest stands at its foot, else a line now and
    then.
    """
    began, text, first = monotonic(), "", -1

    def line(row: dict[str, Any], total: int) -> str:
        left = (monotonic() - began) / max(row["step"] - first, 1) * (total - row["step"])
        speed = row["tokens"] / max(row["seconds"], 1e-6)
        return (
            f"step {row['step']}/{total}  {_said(row)}  {speed:,.0f} tokens/s  {left:,.0f} s left"
        )

    def moving(row: dict[str, Any], total: int) -> None:
        nonlocal text
        text = line(row, total)

    def printing(row: dict[str, Any], total: int) -> None:
        if row["step"] % max(total // LINES, 1) == 0 or row["step"] == total:
            console.note(line(row, total))

    def counted(
        show: Callable[[dict[str, Any], int], None],
    ) -> Callable[[dict[str, Any], int], None]:
        def told(row: dict[str, Any], total: int) -> None:
            nonlocal began, first
            if first < 0:  # the model is loaded, the run may go on from an earlier one
                began, first = monotonic() - row["seconds"], row["step"] - 1
            show(row, total)

        return told

    if not wanted:
        yield lambda _row, _total: None
    elif console.moving():
        with console.refreshing(lambda: text):
            yield counted(moving)
    else:
        yield counted(printing)


def _said(row: dict[str, Any]) -> str:
    right = " ".join(f"{value:.3f}" for value in row["accuracy"])
    return f"loss {' '.join(f'{value:.3f}' for value in row['loss'])}  right {right}"
