"""SHD: what `verify` finds in shards. Every code with its severity and its documentation.

What enters: nothing. What leaves: `SHARD_RULES`, code → `Rule`. They are not in the registry of the
audit: their conditions are no expressions over records, `verify` and `invariants` decide when they
fire.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from eagle3_data.audit.rules.registry import Columns, Rule, Scope, Severity

SHARD_RULES: Final[dict[str, Rule]] = {}


def _never(_: Columns) -> pl.Expr:
    return pl.lit(False)


def _shd(
    number: int, name: str, docs: str, *, at: str = "", severity: Severity = Severity.ERROR,
    needs_tokens: bool = False,
) -> str:  # fmt: skip
    code = f"SHD{number:03d}"
    SHARD_RULES[code] = Rule(code, name, severity, at, _never, docs, Scope.CORPUS, needs_tokens)
    return code


MANIFEST_MISSING = _shd(
    1,
    "manifest-missing",
    """\
The directory has no manifest.

Why it matters: the manifest is written last, so the run that wrote the shards did not finish.
What to do: run the same `convert` command again; it continues behind the finished shards. Where
only the manifest was lost, add `--overwrite`: its shards look like another run's now.""",
)

MANIFEST_CHANGED = _shd(
    2,
    "manifest-changed",
    """\
The manifest can not be read, or is not what the run wrote: its checksum or its sums do not fit, or
its numbers are not those of its shards (tokens, rows, the ledger with its splits).

Why it matters: it was edited, so its counts prove nothing; or it vouches for shards that were.
What to do: restore it from where the directory was copied from, or convert again.""",
)

SHARD_MISSING = _shd(
    3,
    "shard-missing",
    """\
A file that the manifest lists is not there.

Why it matters: its samples are lost, and a reader that lists the directory does not notice.
What to do: copy the directory again, or run the same `convert` command again.""",
)

SHARD_EXTRA = _shd(
    4,
    "shard-extra",
    """\
A Parquet file lies in the directory, or in a folder inside it, that the manifest does not list.

Why it matters: readers that take the whole directory, its folders included, train on it.
What to do: move it away.""",
)

SHARD_TRUNCATED = _shd(
    5,
    "shard-truncated",
    """\
A shard is shorter than the manifest says.

Why it matters: its end is lost; the file can not be read at all.
What to do: copy it again, or run the same `convert` command.""",
)

SHARD_SWAPPED = _shd(
    6,
    "shard-swapped",
    """\
A shard holds the bytes of another shard of the manifest.

Why it matters: the order of the samples changed; whatever is keyed by row number (hidden states)
belongs to others.
What to do: rename the files back.""",
)

SHARD_CHANGED = _shd(
    7,
    "shard-changed",
    """\
A shard has other bytes than the run wrote.

Why it matters: it was edited or damaged; ids or masks may differ from the captures.
What to do: copy it again, or run the same `convert` command.""",
)

SHARD_UNREADABLE = _shd(
    8,
    "shard-unreadable",
    """\
A file is not readable Parquet, or not a shard.

Why it matters: training stops there, or the reader skips it.
What to do: copy it again, or run the same `convert` command.""",
)

ROWS_DIFFER = _shd(
    9,
    "rows-differ",
    """\
A shard holds another number of rows than the manifest says.

Why it matters: samples were lost or added after the run.
What to do: copy it again, or convert again.""",
)

SCHEMA_DIFFERS = _shd(
    10,
    "schema-differs",
    """\
A shard has other columns or types than schema v1, or a schema version that this release does not
read.

Why it matters: readers fail, or fill columns with nulls.
What to do: use the release that wrote it, or convert again.""",
)

FACTS_DIFFER = _shd(
    11,
    "facts-differ",
    """\
A shard was written with another profile, tokenizer, template or rules than the manifest says, or a
sample names another profile.

Why it matters: ids of two tokenizers in one data set train nonsense in silence.
What to do: keep the shards of one run in one directory.""",
)

CONTRACT_BROKEN = _shd(
    12,
    "contract-broken",
    """\
A column holds a value that schema v1 does not allow: a column of JSON text holds none,
a `sample_id` is not the one of its `line_hash`, `choice` and `turn`, samples of one line have
different line hashes.

Why it matters: readers rely on it; an id that is not made of its line leads to no capture.
What to do: see the column and the value in the detail; convert again.""",
)

LENGTHS_DIFFER = _shd(
    13,
    "lengths-differ",
    """\
`input_ids`, `loss_mask` and `seq_len` do not have one length.

Why it matters: trainers shift the mask against the ids, or stop.
What to do: convert again.""",
    at="/loss_mask",
)

MASK_NOT_BINARY = _shd(
    14,
    "mask-not-binary",
    """\
The loss mask holds other values than 0 and 1.

Why it matters: it weights the loss; no trainer checks it.
What to do: convert again.""",
    at="/loss_mask",
)

ID_OUT_OF_RANGE = _shd(
    15,
    "id-out-of-range",
    """\
A token id is negative, or not below the size of the vocabulary.

Why it matters: training reads beyond the embedding table.
What to do: check that capture and tokenizer belong to the same model; convert again.""",
    at="/input_ids",
)

SPANS_DO_NOT_TILE = _shd(
    16,
    "spans-do-not-tile",
    """\
The spans do not cover the sequence from its first to its last token, in order and without gaps.

Why it matters: statistics and views by kind of token are wrong.
What to do: convert again.""",
    at="/spans",
)

MASK_NOT_SPANS = _shd(
    17,
    "mask-not-spans",
    """\
The mask is not 0 on the prompt and 1 on everything that was sampled.

Why it matters: prompt tokens are trained, or sampled ones are not.
What to do: convert again; a mask that was changed on purpose belongs into another directory.""",
    at="/loss_mask",
)

COUNTS_DIFFER = _shd(
    18,
    "counts-differ",
    """\
`prompt_len` or `supervised_tokens` is not what spans and mask say, or the server's counts are not
what grade A, B or C says that they are.

Why it matters: filters and length statistics are wrong, or a grade claims a proof that it has not.
What to do: convert again.
Not flagged: a stop token that the server does not count, what a cut at the length limit took.""",
    at="/prompt_len",
)

END_NOT_SUPERVISED = _shd(
    19,
    "end-not-supervised",
    """\
The model stopped, but the sequence does not end in a supervised end-of-turn id.

Why it matters: a drafter trained without it never proposes the end.
What to do: check the end_of_turn of the profile; convert again.
Not flagged: a stop string of the request, or a stop id of it that is the last one; samples cut at
the length limit.""",
    at="/input_ids",
)

SAMPLE_REPEATED = _shd(
    20,
    "sample-repeated",
    """\
Two samples have the same id, or come from the same file, line, choice and turn.

Why it matters: the id is made from the record's bytes, so the same sample is trained twice.
What to do: remove the duplicate from the captures; SET rules name it. Where only the place is the
same, one of the two was edited: convert again.""",
    at="/sample_id",
)

CONVERSATION_SPLIT = _shd(
    21,
    "conversation-split",
    """\
Samples of one conversation are in different splits.

Why it matters: validation measures what was trained.
What to do: convert all captures in one run.""",
    at="/split",
)

TEXT_DIFFERS = _shd(
    22,
    "text-differs",
    """\
The supervised ids decode to another text than the one beside them; or `reasoning` and `content`
both hold text, and the ids hold another part of it as the thought than `reasoning` does.

Why it matters: ids and text are of different answers, or the tokenizer is another one.
What to do: convert again; check whether rows were joined by position.
Not flagged: whitespace and think markers, which servers strip; thought and answer that stand in one
field together, as servers write them that split nothing; which part is the thought where the ids do
not close it exactly once.""",
    at="/input_ids",
    needs_tokens=True,
)

LEFTOVERS = _shd(
    23,
    "leftovers",
    """\
The journal, a temporary file or the waiting samples of a run lie beside a finished result.

Why it matters: a run was stopped between its last steps, or another one is writing now.
What to do: run the same `convert` command again; it tidies up.""",
    severity=Severity.WARN,
)

FOREIGN_ENTRY = _shd(
    24,
    "foreign-entry",
    """\
A file, a folder or a symbolic link lies in the directory that is neither the manifest nor a shard
that it lists.

Why it matters: nothing vouches for it; a reader that takes the whole directory may read it.
What to do: move it away.
Not flagged: a link in the place of a listed file, as the Hub and DVC lay files out; what it leads
to is checked like the file. Entries whose names begin with a dot, unless they are Parquet.""",
    severity=Severity.WARN,
)
