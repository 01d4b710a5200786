"""Finetune: states and a target become a drafter that engines load.

What enters: states, a mapping or a drafter to start from, settings, a folder. What leaves: in it
the drafter, `training/metrics.jsonl` and, written last, `training/run.json`. It promises that what
does not belong together (target, layers, tokenizer, mapping) is refused before the first step.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import distributed

from eagle3_data import __version__
from eagle3_data.draft import checkpoint, resume
from eagle3_data.draft import tensors as files
from eagle3_data.draft.batches import SHORTEST
from eagle3_data.draft.checkpoint import Checkpoint, CheckpointError
from eagle3_data.draft.mapping_files import SAFETENSORS, inherited
from eagle3_data.draft.model import Drafter
from eagle3_data.draft.online import Online
from eagle3_data.draft.states import States
from eagle3_data.draft.target import Target, shape_for
from eagle3_data.draft.train import Settings, Teacher, Trainer, TrainError
from eagle3_data.writing import OutputError, drafting

TRAINING, METRICS, RUN = "training", "metrics.jsonl", "run.json"
WARM = 5
"""A warm-up of more than a fifth of the steps is told."""

Told = Callable[[dict[str, Any], int], None]
"""Called with each row of metrics and the number of steps in all."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a drafter begins: the mapping of a new one and its `flags`, or an existing drafter."""

    mapping: Path | None = None
    init: Path | None = None
    flags: Mapping[str, bool] | None = None


def begin(start: Start, states: States | Online, target: Target, seed: int) -> Checkpoint:
    """The drafter before its first step. Raises CheckpointError, VocabError, TensorError."""
    layers = states.identity.layers.output_of
    if start.mapping is not None:
        _same_tokenizer(start.mapping, states)
    if list(layers) != sorted(layers):
        raise CheckpointError(
            f"the states hold the layers {list(layers)}: engines sort them, so no engine would"
            " give a drafter what it learned; extract again with --layers in order"
        )
    if start.init is not None:
        made = checkpoint.load(start.init, target)
        why = made.reads(layers)
        if why is not None:
            raise CheckpointError(f"{start.init} can not be trained on these states: {why}")
        theirs = made.facts.get("tokenizer_hash", states.identity.facts.tokenizer_hash)
        if theirs != states.identity.facts.tokenizer_hash:
            raise CheckpointError(f"{start.init} was trained on ids of another tokenizer")
        if start.flags and any(start.flags.values()):
            raise CheckpointError(f"{start.init} has its own norm flags: leave the options out")
        if start.mapping is not None:
            other = inherited(start.mapping, target.vocab_size)
            if other.fingerprint != made.mapping.fingerprint:
                raise CheckpointError(
                    f"{start.mapping} is not the mapping of {start.init}: its head would be"
                    " permuted in silence; leave --mapping out, the drafter's own is kept"
                )
        return made
    if start.mapping is None:
        raise CheckpointError("name --mapping (what `vocab` wrote), or --init with a drafter")
    mapping = inherited(start.mapping, target.vocab_size)
    torch.manual_seed(seed)
    shape = shape_for(target, mapping.size, len(layers), **dict(start.flags or {}))
    drafter = Drafter(shape, target.embedding)
    with torch.no_grad():  # the head and its norm begin as the target's
        drafter.lm_head.weight.copy_(target.head[torch.from_numpy(mapping.targets)])
        drafter.norm.weight.copy_(target.norm)
    return Checkpoint(drafter, mapping)


def finetune(
    states: States | Online,
    out: Path,
    *,
    target: Target,
    start: Start,
    settings: Settings,
    device: str = "cpu",
    dtype: str = "bf16",
    with_embedding: bool = False,
    ids_of_outputs: bool = False,
    save_every: int = 200,
    tensorboard: bool = False,
    go_on: bool = False,
    overwrite: bool = False,
    stop: Callable[[], bool] = lambda: False,
    told: Told = lambda _row, _total: None,
    note: Callable[[str], None] = lambda _text: None,
) -> bool:
    """Train and export; False when it was stopped before the end, its state saved. `note`: called
    before the first step with what a user should know about the run.

    A run that was complete is not trained again, its drafter is exported anew when the options for
    that have changed. Raises ValueErrors of this room for what does not belong together or can not
    be written.
    """
    states = states.where(min_length=SHORTEST)
    if not len(states):
        raise TrainError("no sample is left to train on: look at the splits and filters")
    with processes(device) as place:
        made = begin(start, states, target, settings.seed)
        norm = states.identity.final_norm
        teacher = Teacher(target, made.mapping, norm, place, settings.bf16)
        trainer = Trainer(made.drafter.to(place), teacher, states, settings, place)
        identity = _identity(states, made, settings, trainer.world, start)
        folder = out / TRAINING
        if trainer.rank == 0:
            _claim(out, identity, go_on=go_on, overwrite=overwrite)
        if trainer.world > 1:
            distributed.barrier()
        saved, complete = resume.latest(folder), (folder / RUN).is_file()
        if saved is not None and not complete:
            resume.restore(trainer, saved, identity)
        resume.agree(trainer, identity, complete=complete)
        way: dict[str, Any] = {
            "dtype": dtype,
            "with_embedding": with_embedding,
            "ids_of_outputs": ids_of_outputs,
        }
        if complete:
            if trainer.rank == 0:
                _export_again(out, target, way)
            return True
        if trainer.rank == 0:
            for text in _notes(made, start, target, trainer, states.identity.layers.output_of):
                note(text)
        with closing(Log(folder, tensorboard, trainer.rank == 0)) as log:
            for row in trainer.run(_agreed(stop, trainer)):
                log.row(row)
                if trainer.rank == 0:
                    told(row, len(trainer.steps))
                    if trainer.done % save_every == 0:
                        resume.save(trainer, folder, identity)
        ended = trainer.done == len(trainer.steps)
        if trainer.rank != 0:
            return ended
        if not ended:
            resume.save(trainer, folder, identity)
            return False
        facts = identity["data"] | {
            "samples": identity["samples"],
            "version": __version__,
            "training": asdict(settings),
        }
        final = Checkpoint(made.drafter, made.mapping, facts=facts)
        checkpoint.export(final, out, target, **way)
        ran = {"tool": "eagle3-data", "steps": trainer.done, "identity": identity, "export": way}
        _write(folder / RUN, ran)
        for one in folder.glob("step-*"):
            shutil.rmtree(one)
        return True


def _export_again(out: Path, target: Target, way: dict[str, Any]) -> None:
    """Write the drafter of a complete run as it is wanted now. Raises OutputError for numbers that
    were not kept.
    """
    ran = orjson.loads((out / TRAINING / RUN).read_bytes())
    if ran["export"] == way:
        return
    if ran["export"]["dtype"] != way["dtype"]:
        raise OutputError(
            f"{out} was trained to its end and written with --dtype {ran['export']['dtype']}: other"
            " numbers are not left; --overwrite trains again"
        )
    checkpoint.export(checkpoint.load(out, target), out, target, **way)
    _write(out / TRAINING / RUN, ran | {"export": way})


def _notes(
    made: Checkpoint, start: Start, target: Target, trainer: Trainer, output_of: list[int]
) -> Iterator[str]:
    """What a user should know before hours of training."""
    steps, settings = len(trainer.steps), trainer.settings
    tokens = int(trainer.samples.index["seq_len"].sum()) * settings.epochs
    packs = settings.accumulate * trainer.world
    on = f", on {trainer.world} processes" if trainer.world > 1 else ""
    yield (
        f"{steps:,} optimizer steps of {tokens // max(steps, 1):,} tokens"
        f" ({packs} pack{'s' * (packs > 1)} of at most {settings.batch_tokens:,}{on})"
    )
    if settings.warmup * WARM > steps:
        yield (
            f"--warmup {settings.warmup} is a large part of {steps:,} steps: lower it, or"
            " --accumulate, or --batch-tokens (more processes make fewer steps too)"
        )
    doubt = made.doubt(list(output_of))
    if doubt:
        yield f"{start.init}: {doubt}"
    if not checkpoint.alike(made.drafter.embedding, target.embedding):
        yield (
            f"{start.init} has an embedding of its own: it is trained on, and exported, since"
            " engines would else share the target's"
        )


@contextmanager
def processes(device: str) -> Iterator[torch.device]:
    """The device of this process; under torchrun all processes are one run."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if "RANK" not in os.environ:
        yield torch.device(device)
        return
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    distributed.init_process_group("gloo" if device == "cpu" else "nccl")
    try:
        yield torch.device(device)
    finally:
        distributed.destroy_process_group()


def _agreed(stop: Callable[[], bool], trainer: Trainer) -> Callable[[], bool]:
    """All processes stop at the same step: when one of them wants to."""

    def any_of_them() -> bool:
        wanted = torch.tensor(float(stop()), device=trainer.device)
        distributed.all_reduce(wanted)
        return bool(wanted > 0)

    return any_of_them if trainer.world > 1 else stop


def _identity(
    states: States | Online, made: Checkpoint, settings: Settings, world: int, start: Start
) -> dict[str, Any]:
    """What makes two runs the same run."""
    of = states.identity
    ids = "\n".join(states.index["sample_id"]).encode()
    return {
        "data": {
            "layers_output_of": of.layers.output_of,
            "target": Path(of.target.id).name,
            "target_weights": of.target.weights,
            "tokenizer_hash": of.facts.tokenizer_hash,
            "profile": of.facts.profile,
            "states": states.fingerprint,
            "mapping": made.mapping.fingerprint,
        },
        "samples": {
            "count": len(states),
            "sha256": hashlib.sha256(ids).hexdigest(),
            "splits": sorted(set(states.index["split"])),
        },
        "settings": asdict(settings),
        "shape": {k: v for k, v in asdict(made.drafter.shape).items() if k != "rope"},
        "start": _fingerprint(start.init),
        "processes": world,
    }


def _fingerprint(init: Path | None) -> str:
    """Digest of the weights that training starts from; "" for new ones."""
    from eagle3_data.shards.journal import digest

    if init is None:
        return ""
    return " ".join(sorted({digest(t.file) for t in files.tensors(init).values()}))


def _claim(out: Path, identity: dict[str, Any], *, go_on: bool, overwrite: bool) -> None:
    """Make `out` ours: empty, or that of the same run when going on. Raises OutputError."""
    folder = out / TRAINING
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out} is no folder: choose another name")
    if go_on and (folder / RUN).is_file():
        found = orjson.loads((folder / RUN).read_bytes())["identity"]
        if found != orjson.loads(orjson.dumps(identity)):
            raise OutputError(f"{out} holds another finished run: choose a folder, or --overwrite")
    elif go_on and resume.latest(folder) is not None:
        _cut(folder / METRICS, int(resume.latest(folder).name.removeprefix("step-")))  # type: ignore[union-attr]
    elif out.exists() and any(out.iterdir()):
        begun = folder.is_dir()
        ours = begun or (overwrite and (out / checkpoint.WEIGHTS).is_file())
        if not (overwrite or go_on) or not ours:
            step = "--resume to go on, or --overwrite to start again" if begun else "another folder"
            raise OutputError(f"{out} is not empty: pass {step}")
        for left in (out / checkpoint.WEIGHTS, out / "config.json"):
            left.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)


def _cut(metrics: Path, steps: int) -> None:
    """Keep the rows of the first `steps` steps: the others are made again."""
    if metrics.is_file():
        lines = metrics.read_bytes().splitlines(keepends=True)[:steps]
        with drafting(metrics, overwrite=True) as draft:
            draft.write(b"".join(lines))


class Log:
    """Rows of metrics, into JSONL and, when wanted, TensorBoard; of the first process only."""

    def __init__(self, folder: Path, tensorboard: bool, first: bool) -> None:
        self.file: Any = None
        self.board: Any = None
        if first and tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise TrainError("the package tensorboard is not there: install it") from None
            self.board = SummaryWriter(str(folder / "tensorboard"))
        if first:
            self.file = (folder / METRICS).open("ab", buffering=0)

    def row(self, row: dict[str, Any]) -> None:
        """One optimizer step."""
        if self.file is not None:
            self.file.write(orjson.dumps(row) + b"\n")
        if self.board is not None:
            for name in ("loss", "accuracy"):
                for ahead, value in enumerate(row[name], 1):
                    self.board.add_scalar(f"{name}/{ahead}", value, row["step"])
            self.board.add_scalar("lr", row["lr"], row["step"])

    def close(self) -> None:
        """Everything is on its way to the disk."""
        for one in (self.file, self.board):
            if one is not None:
                one.close()


def _write(path: Path, body: dict[str, Any]) -> None:
    with drafting(path, overwrite=True) as draft:
        draft.write(orjson.dumps(body, option=orjson.OPT_INDENT_2) + b"\n")


def _same_tokenizer(mapping: Path, states: States | Online) -> None:
    """Refuse a mapping that says it was counted on ids of another tokenizer."""
    from safetensors import SafetensorError, safe_open

    file = mapping / SAFETENSORS if mapping.is_dir() else mapping
    if file.suffix != ".safetensors" or not file.is_file():
        return
    try:
        with safe_open(str(file), framework="np") as opened:
            about = orjson.loads((opened.metadata() or {}).get(checkpoint.OWN, "{}"))
            told = about.get("tokenizer_hash")
    except (SafetensorError, OSError, orjson.JSONDecodeError, AttributeError):
        return  # reading it says what is wrong
    if told not in (None, states.identity.facts.tokenizer_hash):
        raise CheckpointError(
            f"{mapping} was counted on ids of another tokenizer than the states: make it of the"
            " same shards with `vocab`"
        )
