"""Samples longer than a trainer takes: which ones, and what is left of them.

What enters: a frame with sample columns and a length in tokens. What leaves: the frame with the
tail of long samples cut off and `truncated` set. It promises that a cut is never silent: the
supervised tokens lost stand beside it, and a sample that would lose all of them is left whole for
the caller to quarantine.
"""

from __future__ import annotations

import polars as pl

LOST = "tokens_lost"
"""Column: supervised tokens that the cut took, 0 for samples that were not cut."""


def cut_tails(frame: pl.DataFrame, max_length: int) -> pl.DataFrame:
    """`frame` with samples of more than `max_length` tokens cut to it, and the columns `truncated`
    and `tokens_lost`.

    A sample whose prompt alone fills `max_length` is not cut (nothing would be supervised) and
    stays longer.
    """
    long = (pl.col("seq_len") > max_length) & (pl.col("prompt_len").fill_null(0) < max_length)
    frame = frame.with_columns(truncated=long.fill_null(False))
    if not frame["truncated"].any():
        return frame.with_columns(pl.lit(0, dtype=pl.Int64).alias(LOST))
    inside = pl.element().struct.field("start") < max_length
    clipped = pl.struct(
        pl.element().struct.field("kind"),
        pl.element().struct.field("start"),
        pl.element().struct.field("end").clip(upper_bound=max_length),
    )
    lost = pl.col("seq_len") - max_length
    cut = {
        "input_ids": pl.col("input_ids").list.head(max_length),
        "loss_mask": pl.col("loss_mask").list.head(max_length),
        "spans": pl.col("spans").list.eval(clipped.filter(inside)),
        "seq_len": pl.lit(max_length, dtype=pl.Int64),
        "supervised_tokens": pl.col("supervised_tokens") - lost,
        LOST: lost,
    }
    kept = {LOST: pl.lit(0, dtype=pl.Int64)}
    return frame.with_columns(
        pl.when("truncated").then(value).otherwise(kept.get(name, pl.col(name))).alias(name)
        for name, value in cut.items()
    )
