"""The sample table: the columns that assembly adds to the record table, one row for one row.

`loss_mask[i] = 1` iff token i was sampled by the model, the stop token included when it was
sampled. All columns are null for a row that could not be assembled (unreadable, error body) and
when there is no tokenizer.
"""

from __future__ import annotations

from enum import StrEnum

import polars as pl

IMPORTED = "imported"
"""`grade_reason` of ids that a trainer's file holds: nobody vouches that the model sampled them."""


class Grade(StrEnum):
    """How well the token ids of a sample are proven to be the target's own."""

    A = "A"
    """Exact: ids captured from the server."""
    B = "B"
    """Consistent: re-assembled, and the count equals `completion_tokens`. Strong, but no proof."""
    C = "C"
    """Consistent after one unique whitespace repair where this server version is known to strip."""
    D = "D"
    """Unproven: re-assembled, nothing to compare with."""
    E = "E"
    """Contradicted (counts differ) or ambiguous (two streams fit)."""


class SpanKind(StrEnum):
    """What a stretch of tokens is. Spans tile the sequence in order."""

    PROMPT = "prompt"
    REASONING = "reasoning"
    CONTENT = "content"
    TOOLS = "tools"
    MARKER = "marker"
    """Think markers, tool markers and the end of turn that the model sampled."""


class PromptSource(StrEnum):
    """Where the prompt ids come from."""

    CAPTURED = "captured"
    TEMPLATE = "template"
    LAYOUT = "layout"
    """The profile's own layout: no chat template was at hand."""
    NONE = "none"


NO_REQUEST = "the record holds no request"
"""The `prompt_reason` of a record that no prompt can be asked of."""

GRADE = pl.Enum([g.value for g in Grade])
SPAN_KIND = pl.Enum([k.value for k in SpanKind])
PROMPT_SOURCE = pl.Enum([s.value for s in PromptSource])

SAMPLE_COLUMNS: dict[str, pl.DataType] = {
    "grade": GRADE,
    # one of a fixed set: captured, count-equal, whitespace-repair, no-count, count-differs,
    # ambiguous, captured-contradicts-count, prompt-ids-contradict-count, edge-unknown,
    # opening-unproven, stop-token-not-counted, stop-token-reading-unproven, …
    "grade_reason": pl.String(),
    "prompt_source": PROMPT_SOURCE,
    "prompt_reason": pl.String(),  # why there is no rendered prompt; null when there is one
    # completion tokens of the stream built from TEXT by the profile's grammar (also when ids
    # were captured)
    "assembled_tokens": pl.Int64(),
    "count_delta": pl.Int64(),  # assembled_tokens - completion_tokens; null without usage
    "prompt_len": pl.Int64(),
    "seq_len": pl.Int64(),
    "supervised_tokens": pl.Int64(),  # ones in the mask
    "reasoning_span_tokens": pl.Int64(),
    "content_span_tokens": pl.Int64(),
    # our own count of the prompt (rendered), also when ids were captured; null when not
    # rendered
    "prompt_tokens_rendered": pl.Int64(),
    # captured prompt ids == rendered ids; null when one is missing
    "prompt_ids_match": pl.Boolean(),
    "prompt_quotes_marker": pl.Boolean(),  # request text spells a control marker
    "double_bos": pl.Boolean(),  # prompt begins with two BOS ids
    # prompt ids end in the opening think marker (whitespace after it allowed)
    "prompt_ends_open": pl.Boolean(),
    "starts_open": pl.Boolean(),  # first sampled token is the opening think marker
    "ends_eot": pl.Boolean(),  # last sampled token is an end-of-turn / stop id of the profile
    "n_open_ids": pl.Int32(),  # think markers as ids in the completion
    "n_close_ids": pl.Int32(),
    # other control ids of the profile in it, an end of turn as its last id aside
    "n_control_ids": pl.Int32(),
    "n_early_stop_ids": pl.Int32(),  # ends of turn before the last sampled token
    # a think marker stands in the captured ids as several ordinary tokens
    "marker_as_text": pl.Boolean(),
    # captured ids decode to the text beside them (modulo known strips); null without captured
    # ids
    "text_matches_ids": pl.Boolean(),
    # encode(decode(completion ids)) == completion ids; null without captured ids
    "roundtrip": pl.Boolean(),
    "max_id": pl.Int64(),  # largest id of the sequence
    "id_changes": pl.Int64(),  # places in the completion where the id differs from the one before
    "input_ids": pl.List(pl.Int32),
    "loss_mask": pl.List(pl.UInt8),
    "spans": pl.List(pl.Struct({"kind": SPAN_KIND, "start": pl.Int32, "end": pl.Int32})),
}
"""Column → dtype, in order. `spans` are half-open token ranges."""


def unassembled(height: int) -> pl.DataFrame:
    """The sample columns of `height` rows, all null: what the road carries when there is no
    tokenizer.
    """
    return pl.DataFrame(
        {
            name: pl.Series(name, [None] * height, dtype=dtype)
            for name, dtype in SAMPLE_COLUMNS.items()
        }
    )
