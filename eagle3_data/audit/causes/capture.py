"""Causes on the way from the server to the file: the thought was lost, left in the answer, or moved
to another key.
"""

from __future__ import annotations

import polars as pl

from eagle3_data.audit.causes.case import EXACT, NEARLY_ALL, Case, Found, median, several
from eagle3_data.audit.causes.coupling import (
    CLOSED_IN_THOUGHT,
    CLOSING_MARKER_ONLY,
    ENDED_IN_THOUGHT,
    FOREIGN_MARKERS,
    KEY_RENAMED,
    NOTHING_SAID,
    OTHER_TEXT,
    THOUGHT_COUNTED,
    THOUGHT_FOLLOWS,
    THOUGHT_IN_CONTENT,
    THOUGHT_MISSING,
)
from eagle3_data.audit.inert import inert

FAMILIES = ("CAP", "WRP", "TOK")
BYTES_PER_TOKEN = 4.0
"""Of stored text, where the file has no good record to measure: 4 to 5 in English and, at three
bytes a character, in Chinese; about 3 in code."""
LOST_BYTES = 0.6
"""Of the usual bytes a token: below it, more was sampled than is stored."""
LOST_SHARE = 0.1
"""Tokens missing from the rebuilt stream, of those counted, from which text is lost (markers are 1
to 4 tokens).
"""
LOST_TOKENS = 8
BLANK_TOKENS = 4
"""Tokens behind a closing marker that may be line ends and no answer."""


def answer_in_thought(case: Case) -> Found | None:
    """The captured ids close the thought and answer, and the text of both is in the reasoning.
    Where the ids decode to other text, the answer is not there but lost.
    """
    rows = case.records.filter(
        case.fired(ENDED_IN_THOUGHT)
        & ~case.fired(OTHER_TEXT)
        & EXACT
        & (pl.col("content_span_tokens") > BLANK_TOKENS)
    )
    if not case.many(rows):
        return None
    return case.found(
        "answer-in-reasoning",
        "the answer was stored in the reasoning field, behind the thought",
        [
            f"{rows.height:,} of {case.total:,} records have a thought and no answer, but their ids"
            " hold an answer behind the closing marker",
            *case.where(rows),
        ],
        "Serve with a reasoning parser that fits this model, or mend the client that joins the two,"
        " and capture these records again.",
        rows,
        rules=ENDED_IN_THOUGHT + CLOSED_IN_THOUGHT,
    )


def lost_thought(case: Case) -> Found | None:
    """The thought was never stored: usage counts it, the file does not hold it."""
    bare = pl.col("reasoning_state").cast(pl.String).fill_null("missing") != "text"
    inside = case.fired(THOUGHT_IN_CONTENT + CLOSING_MARKER_ONLY)
    foreign = case.fired(FOREIGN_MARKERS)
    thinking = pl.col("thinking_on").fill_null(False)
    # a count decides, whatever stands in content; where nothing was counted the rule does
    missing = thinking & case.fired(THOUGHT_MISSING) & ~inside
    lost = case.fired(THOUGHT_COUNTED) | pl.coalesce(_lost(case), missing)
    rows = case.records.filter(bare & lost & ~foreign)
    # a thought too short to show in the count was lost the same way as those of its kind
    kind = pl.col("reasoning_keys").is_in(rows["reasoning_keys"].unique().implode())
    alike = case.records.filter(bare & (lost | (missing & kind)) & ~foreign)
    if 2 * rows.height >= alike.height:
        rows = alike
    # one client read all of them: the few whose answers look like a cause of their own are no other
    rules = THOUGHT_MISSING + THOUGHT_COUNTED + THOUGHT_FOLLOWS
    whole = case.records.filter(bare & thinking & kind & ~foreign)
    if whole.height > rows.height >= NEARLY_ALL * whole.height:
        rows, rules = whole, rules + CLOSING_MARKER_ONLY
    if not case.many(rows):
        return None
    name, title, remedy = _field(case, rows)
    every = case.everything.filter(thinking).height
    evidence = [f"{rows.height:,} of {max(every, rows.height):,} thinking records hold no thought"]
    fields = rows["reasoning_keys"].replace("", None)
    if fields.drop_nulls().len():
        evidence.append(f"reasoning fields found: {several(fields)}")
    evidence += _usage(rows)
    good = case.everything.filter(~bare)
    if good.height:
        keys = several(good["reasoning_key"])
        evidence.append(f"{good.height:,} other records hold their thought in {keys}")
    if rows["server_version"].drop_nulls().len():
        evidence.append(f"server versions seen: {several(rows['server_version'])}")
    next_step = (
        f"The text was never stored, so no repair is possible: {remedy}, then capture these"
        " records again (`eagle3-data check FILES --quarantine DIR` puts them into one file)."
    )
    if rows.filter(case.fired(NOTHING_SAID)).height:  # cut inside the thought: no answer either
        rules = (*rules, *NOTHING_SAID)
    return case.found(
        name,
        title,
        evidence + case.where(rows),
        next_step,
        rows,
        families=FAMILIES,
        rules=rules,
    )


def _field(case: Case, rows: pl.DataFrame) -> tuple[str, str, str]:
    """Name, title and remedy, by the reasoning fields that the records carry."""
    keys = rows["reasoning_keys"].fill_null("")
    new = keys.str.contains(r"(?:^|,)reasoning=")
    old = keys.str.contains("reasoning_content=", literal=True) & ~new
    if _most(old):
        return (
            "wrong-field-read",
            "the server names the field `reasoning`, the capture read the old `reasoning_content`",
            "read `message.reasoning` (vLLM >= 0.16 names it so), or store the whole response body",
        )
    if _most(new):
        counted = rows["completion_tokens"].drop_nulls().len() > 0
        return (
            "thought-not-returned",
            "the server counted a thought that it did not return"
            if counted
            else "the reasoning field is there and empty: no thought was returned",
            "ask without `include_reasoning: false` and with a reasoning parser that fits"
            f" ({parser_flag(case, rows)})",
        )
    return (
        "thought-not-stored",
        "the thought was never stored: the records have no reasoning field",
        "store the whole response body; the field is `reasoning` (vLLM >= 0.16) or"
        " `reasoning_content` (older vLLM, SGLang, llama.cpp)",
    )


def no_parser(case: Case) -> Found | None:
    """No reasoning parser on the server: the thought stands in the answer, markers and all."""
    rows = case.records.filter(case.fired(THOUGHT_IN_CONTENT))
    if not case.many(rows):
        return None
    counted = f"{rows.height:,} records hold the thought between markers in `content`"
    return case.found(
        "no-reasoning-parser",
        "the server ran without a reasoning parser: `content` holds the thought and its markers",
        [counted, *case.where(rows)],
        f"Nothing is lost: `--repair` splits it. For the next capture: {parser_flag(case, rows)}.",
        rows,
        families=FAMILIES,
        rules=THOUGHT_IN_CONTENT,
    )


def foreign_markers(case: Case) -> Found | None:
    """The thought stands in the answer between the markers of another family."""
    rows = case.records.filter(case.fired(FOREIGN_MARKERS))
    if not case.many(rows):
        return None
    return case.found(
        "foreign-markers",
        f"`content` holds the thought in markers that profile {case.profile.name} does not have",
        [
            f"{rows.height:,} records begin with the think marker of another family",
            f"models of these: {several(rows['model']) or 'not named'}",
            *case.where(rows),
        ],
        "Choose the profile of the model that was served (`eagle3-data profiles`); if it is"
        f" {case.profile.name}, these answers imitate another model: leave them out.",
        rows,
        families=FAMILIES,
        rules=FOREIGN_MARKERS,
    )


def closing_marker_only(case: Case) -> Found | None:
    """The template opens the thought in the prompt and no parser cut it out: `content` has only the
    closing marker.
    """
    rows = case.records.filter(case.fired(CLOSING_MARKER_ONLY))
    if not case.many(rows):
        return None
    marker = case.profile.think_close.text if case.profile.think_close else "the closing marker"
    opened = (
        f"the prompt of {case.profile.name} ends in the opening marker: answers never show it"
        if case.profile.open_in_prompt
        else f"{case.profile.name} samples the opening marker itself: check --profile"
    )
    return case.found(
        "parser-off-prompt-opens",
        f"`content` holds {marker} but no opening marker: no parser cut the thought out",
        [f"{rows.height:,} records hold only the closing marker", opened, *case.where(rows)],
        f"Nothing is lost: `--repair` splits it. For the next capture: {parser_flag(case, rows)}.",
        rows,
        families=FAMILIES,
        rules=CLOSING_MARKER_ONLY,
    )


def markers_skipped(case: Case) -> Found | None:
    """Special tokens were dropped in decoding: thought and answer run together, and nothing else is
    missing.
    """
    thinking = case.records.filter(pl.col("thinking_on").fill_null(False))
    rows = thinking.filter(
        (pl.col("reasoning_state").cast(pl.String).fill_null("missing") != "text")
        & ~_lost(case).fill_null(True)
        & (pl.col("n_tool_calls").fill_null(0) == 0)
        & ~case.fired(THOUGHT_IN_CONTENT + CLOSING_MARKER_ONLY + FOREIGN_MARKERS)
    )
    every = case.everything.filter(pl.col("thinking_on").fill_null(False)).height
    if rows.height < NEARLY_ALL * every or not case.many(rows):
        return None
    return case.found(
        "markers-skipped",
        "no record shows a marker or a thought, yet the answers hold all the tokens counted",
        [
            f"{rows.height:,} of {every:,} thinking records have no thought and no marker",
            *_usage(rows),
            "so the thought stands in `content` without its markers (special tokens were dropped"
            " in decoding), or thinking was off",
        ],
        "Look at one record. To keep the markers, capture with `skip_special_tokens: false`, or"
        f" split on the server: {parser_flag(case, rows)}. If thinking was off on purpose, choose"
        " a profile that does not think.",
        rows,
        families=FAMILIES,
        rules=THOUGHT_MISSING,
    )


def key_renamed(case: Case) -> Found | None:
    """The reasoning key changes once, in the middle: the server was upgraded during the capture."""
    held = case.everything.filter(pl.col("reasoning_key").is_not_null())
    if held["reasoning_key"].n_unique() != 2:
        return None
    before = held["reasoning_key"][0]
    rows = held.filter(pl.col("reasoning_key") != before)
    if not (held["reasoning_key"] != before).cast(pl.Int8).is_sorted():
        return None
    first = rows.row(0, named=True)
    place = case.place(first["file_no"], first["line"])
    names = several(held["reasoning_key"])
    evidence = [f"the thought is in {names}; the new name begins at {place}"]
    versions = held.group_by("reasoning_key", maintain_order=True).agg(pl.col("server_version"))
    for key, seen in versions.iter_rows():
        counts = several(pl.Series(seen, dtype=pl.String))
        if counts:
            evidence.append(f"`{inert(key, 40)}` comes from server version {counts}")
    return case.found(
        "key-renamed",
        f"the reasoning field is renamed at {place}: the server changed during the capture",
        evidence,
        "Both names were read, nothing is lost. Another server version may strip or count in"
        " another way: compare the grades before and after, and capture one part again if they"
        " differ.",
        rows,
        rules=KEY_RENAMED,
        claims=False,
    )


def parser_flag(case: Case, rows: pl.DataFrame) -> str:
    """The flag of the server that was used, from the profile."""
    vllm, sglang = case.profile.vllm_reasoning_parser, case.profile.sglang_reasoning_parser
    commands = {
        "vllm": f"`vllm serve MODEL --reasoning-parser {vllm}`" if vllm else "",
        "sglang": f"`sglang.launch_server --reasoning-parser {sglang}`" if sglang else "",
    }
    servers = rows["server"].drop_nulls().unique().to_list()
    wanted = [commands[s] for s in servers if commands.get(s)] or [
        c for c in commands.values() if c
    ]
    return "start the server with " + (
        " or ".join(wanted)
        or f"its `--reasoning-parser` for this model (profile {case.profile.name} names none)"
    )


def _lost(case: Case) -> pl.Expr:
    """True where the server counted clearly more tokens than the stored text can be; null where
    nothing tells."""
    counted = pl.col("completion_tokens")
    stored = pl.coalesce("stored_bytes", pl.sum_horizontal("reasoning_chars", "content_chars"))
    good = case.everything.filter((pl.col("reasoning_chars") > 0) & (counted > 0))
    usual = median(good.select(stored / counted).to_series()) or BYTES_PER_TOKEN
    floor = pl.max_horizontal(pl.lit(LOST_TOKENS, pl.Float64), LOST_SHARE * counted)
    by_tokens = -pl.col("count_delta") > floor
    by_bytes = pl.when(counted > LOST_TOKENS).then(stored < LOST_BYTES * usual * counted)
    return pl.coalesce(by_tokens, by_bytes)


def _usage(rows: pl.DataFrame) -> list[str]:
    counted = rows.filter(pl.col("completion_tokens").is_not_null())
    if not counted.height:
        return ["no usage was stored, so the file does not show how much the model said"]
    tokens = median(counted["completion_tokens"])
    chars = median(counted["content_chars"].fill_null(0))
    said = [
        f"the server counted {tokens:,.0f} completion tokens a record (median), the stored answer"
        f" has {chars:,.0f} characters"
    ]
    rebuilt = counted["assembled_tokens"].drop_nulls()
    if rebuilt.len():
        said.append(f"rebuilt from the stored text: {median(rebuilt):,.0f} tokens (median)")
    return said


def _most(flags: pl.Series) -> bool:
    return int(flags.sum()) * 2 > flags.len()
