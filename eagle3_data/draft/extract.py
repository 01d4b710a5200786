"""Extraction: validated shards and a target become hidden states that a drafter is trained on.

What enters: a folder of shards, a target, the choice of layers. What leaves: a folder of states, or
the findings of the self-check that stopped it. It promises that what can not fit is refused with
numbers before the target is loaded, that states of another tokenizer are never made in silence,
and that memory holds one file of states at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eagle3_data.draft import config as configs
from eagle3_data.draft.forward import Source, bits
from eagle3_data.draft.packing import Packing
from eagle3_data.draft.selfcheck import Checked, SelfCheck
from eagle3_data.draft.states import States, open_states
from eagle3_data.draft.states_manifest import (
    STATES,
    Identity,
    Layers,
    StatesError,
    StatesManifest,
    usual_layers,
)
from eagle3_data.draft.states_plan import plan
from eagle3_data.draft.states_writer import USUAL_RATIO, Stated, StatesWriter, refuse
from eagle3_data.draft.target_identity import tokenizer_digest

if TYPE_CHECKING:
    from eagle3_data.draft.findings import Finding
    from eagle3_data.shards.reader import Sample, Shards

BATCH_TOKENS = 8192
FILE_BYTES = 512 << 20
"""Raw bytes of a file: what a killed run does again, and what is in memory at a time."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is extracted. `layers`: as outputs; None for the usual three. `packing`: None measures
    on the first file.
    """

    layers: tuple[int, ...] | None = None
    split: str | None = None
    min_grade: str | None = None
    limit: int | None = None
    batch_tokens: int = BATCH_TOKENS
    file_bytes: int = FILE_BYTES
    packing: Packing | None = None
    any_tokenizer: bool = False


@dataclass(frozen=True, slots=True)
class Extraction:
    """`manifest`: None when the self-check stopped the run. `finished`: files that a former start
    had finished. `again`: everything was there, so what is stored was checked again.
    """

    manifest: StatesManifest | None
    findings: tuple[Finding, ...]
    checked: Checked
    finished: int
    again: bool
    notes: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Nothing of error level was found."""
        return not any(finding.error for finding in self.findings)


def extract(
    shards: Shards,
    forward: Source,
    out: Path,
    choice: Choice | None = None,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
    told: Callable[[str], None] | None = None,
) -> Extraction:
    """Write the states of `shards` into `out`; a finished folder is read and checked again. Raises
    StatesError, ShardError.

    A file in which the self-check finds an error is not written, and the run ends. `progress` is
    called with (raw bytes done, raw bytes in all), `told` with the estimate.
    """
    chosen = choice or Choice()
    shards = shards.where(split=chosen.split, min_grade=chosen.min_grade)
    identity = identified(shards, forward, chosen)
    layers = identity.layers.output_of
    cut = plan(
        shards, token_bytes=identity.token_bytes, file_bytes=chosen.file_bytes, limit=chosen.limit
    )
    check = SelfCheck(forward, layers)
    with StatesWriter(out, identity, cut, packing=chosen.packing, overwrite=overwrite) as writer:
        finished, again = writer.finished, writer.complete
        stored = intact(out) if again else None
        if told is not None and not again:
            told(writer.estimate())
        source, first, done = iter(shards), 0, 0
        seen = Checked()
        for number, rows in enumerate(cut.cuts()):
            samples = list(islice(source, rows.height))
            if [sample.sample_id for sample in samples] != rows["sample_id"].to_list():
                raise StatesError(f"{shards.directory} changed while it was read: run `verify`")
            if number < finished and stored is None:
                seen += Checked(**writer.files[number].checked)  # type: ignore[arg-type]
            else:
                if stored is not None:
                    made = [_stored(stored, first + i) for i in range(rows.height)]
                else:
                    writer.refuse_too_large()
                    step = _step(progress, done, writer.raw_bytes)
                    made = list(states(forward, samples, chosen, layers, step, writer.begin))
                ids = [sample.input_ids for sample in samples]
                this = check.file(made, ids, first, out / STATES.file_name(number))
                seen += this
                if stored is None and not check.sound:
                    findings = tuple(check.findings)
                    return Extraction(None, findings, seen, finished, again, tuple(writer.notes))
                if stored is None:
                    writer.write(made, this.to_dict())
            first += rows.height
            done += int(rows["seq_len"].sum()) * identity.token_bytes
            if progress is not None:
                progress(done, writer.raw_bytes)
        check.whole(seen, out)
        manifest = writer.finish(seen.to_dict())
        notes = tuple(writer.notes)
    return Extraction(manifest, tuple(check.findings), seen, finished, again, notes)


def refuse_early(shards: Shards, target: str, out: Path, choice: Choice) -> None:
    """Raise StatesError when the target has another tokenizer, or the disk can not hold the states,
    as far as the target's folder tells it: loading a large target takes minutes. A run that goes on
    is judged by its writer.
    """
    refuse_tokenizer(shards, target, tokenizer_digest(Path(target)), choice)
    config = Path(target) / configs.CONFIG
    if not config.is_file() or (out.is_dir() and any(out.iterdir())):
        return
    facts = configs.read(config)
    hidden, count = facts.needed("hidden_size"), facts.needed("num_hidden_layers")
    token_bytes = (len(layers_of(choice, count)) + 1) * hidden * 2
    cut = plan(
        shards.where(split=choice.split, min_grade=choice.min_grade),
        token_bytes=token_bytes,
        file_bytes=choice.file_bytes,
        limit=choice.limit,
    )
    place = next(path for path in (out.absolute(), *out.absolute().parents) if path.is_dir())
    ratio = 1.0 if choice.packing is Packing.NONE else USUAL_RATIO
    refuse(place, cut.tokens, token_bytes, ratio, "nothing was written")


def states(
    forward: Source,
    samples: Sequence[Sample],
    choice: Choice,
    layers: Sequence[int],
    step: Callable[[int], None] | None = None,
    begin: Callable[[Stated], None] | None = None,
) -> list[Stated]:
    """The samples with their states, in their order. `step` is told the raw bytes of each batch,
    `begin` each sample as soon as it is there. Nothing touches a disk.
    """
    made: dict[int, Stated] = {}
    for chosen in batches([len(sample.input_ids) for sample in samples], choice.batch_tokens):
        found = forward.states([samples[i].input_ids for i in chosen], layers)
        for i, wide in zip(chosen, found, strict=True):
            one = samples[i]
            made[i] = Stated(one.sample_id, one.input_ids, one.loss_mask, wide[:, :-1], wide[:, -1])
            if begin is not None:
                begin(made[i])
        if step is not None:
            step(sum(wide.nbytes for wide in found))
    return [made[i] for i in range(len(samples))]


def batches(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Samples of like length together, the longest first (what does not fit shows at once): a batch
    holds at most `most` tokens with its padding, or one sample.
    """
    chosen: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if chosen and lengths[chosen[0]] * (len(chosen) + 1) > most:
            yield chosen
            chosen = []
        chosen.append(i)
    if chosen:
        yield chosen


def identified(shards: Shards, forward: Source, choice: Choice) -> Identity:
    """The identity of the run. Raises StatesError when shards and target do not belong together, or
    a layer is not there.
    """
    facts, target = shards.facts, forward.target
    if facts.vocab_size > target.vocab_size:
        raise StatesError(
            f"{shards.directory} holds ids up to {facts.vocab_size - 1:,}, {target.id} knows"
            f" {target.vocab_size:,}: name the target of the capture"
        )
    refuse_tokenizer(shards, target.id, target.tokenizer_hash, choice)
    return Identity(
        facts=facts,
        shards=shards.manifest.checksum,
        chosen={
            "split": choice.split,
            "min_grade": choice.min_grade,
            "limit": choice.limit,
        },
        target=target,
        layers=Layers.of(layers_of(choice, target.layers)),
        final_norm="post" if forward.post else "pre",
        packing="auto" if choice.packing is None else choice.packing.value,
        file_bytes=choice.file_bytes,
        made_by={**forward.made_by, "batch_tokens": choice.batch_tokens},
    )


def refuse_tokenizer(shards: Shards, target: str, tokenizer: str, choice: Choice) -> None:
    """Raise StatesError when the target's `tokenizer` (a digest) is not that of the shards."""
    facts = shards.facts
    if tokenizer not in ("", facts.tokenizer_hash) and not choice.any_tokenizer:
        raise StatesError(
            f"{shards.directory} was made with the tokenizer {facts.tokenizer}"
            f" ({facts.tokenizer_hash[:12]}), {target} has another one ({tokenizer[:12]}):"
            " name the target of the capture, or pass --any-tokenizer when only its files differ"
        )


def layers_of(choice: Choice, count: int) -> list[int]:
    """The chosen layers of a target with `count`. Raises StatesError."""
    if choice.layers is None:
        return usual_layers(count)
    wrong = [k for k in choice.layers if not 0 <= k < count]
    if wrong or len(set(choice.layers)) != len(choice.layers) or not choice.layers:
        raise StatesError(
            f"--layers {','.join(map(str, choice.layers))}: name each layer once, outputs of layers"
            f" 0 to {count - 1} (for vLLM's and speculators' ids take one off each)"
        )
    return list(choice.layers)


def intact(directory: Path) -> States:
    """A finished folder, every byte as it was written. Raises StatesError."""
    found = open_states(directory)
    changed = found.verify()
    if changed:
        raise StatesError(
            f"{directory / changed[0]} has other bytes than were written ({len(changed)} files"
            " have): remove them and run the same command again, it makes them anew"
        )
    return found


def _stored(found: States, i: int) -> Stated:
    """A sample of a finished folder, as it was before it was written."""
    sample = found.sample(i)
    count, hidden = sample.final.shape
    return Stated(
        sample.sample_id,
        sample.input_ids.numpy().astype(np.int32),
        sample.loss_mask.numpy().astype(np.uint8),
        bits(sample.aux).reshape(count, -1, hidden),
        bits(sample.final),
    )


def _step(
    progress: Callable[[int, int], None] | None, done: int, whole: int
) -> Callable[[int], None] | None:
    if progress is None:
        return None
    so_far = done

    def step(size: int) -> None:
        nonlocal so_far
        so_far += size
        progress(so_far, whole)

    return step
