"""Text signals of single answers and prompts: placeholders, refusals, half answers, raw tool calls.

What enters: a frame with the text columns of the record table. What leaves: `ANSWER_COLUMNS`.
It promises that big text meets only literals, lengths and its first or last bytes; a regex sees the
few rows that a
literal let through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from eagle3_data.profiles.profile import Profile

ANSWER_COLUMNS: dict[str, pl.DataType] = {
    # the one character that the whole answer (or thought) consists of; null otherwise
    "one_char": pl.String(),
    "one_char_length": pl.Int64(),
    "open_fence": pl.Boolean(),  # an odd number of ``` in content
    "half_end": pl.String(),  # the last word or mark, when no answer ends there; null otherwise
    "placeholder_answer": pl.Boolean(),
    "refusal": pl.String(),  # the phrase of the first sentence that refuses; null otherwise
    # an unfilled template variable of user or system text; null otherwise
    "prompt_variable": pl.String(),
    "prompt_only_variable": pl.Boolean(),  # the user text is nothing but that variable
    # opening of a tool call found as text although tools were declared; null otherwise
    "raw_tool_call": pl.String(),
    # facts of the profile, the same in every row; null when it does not say
    "profile_vocab_size": pl.Int64(),
    "profile_tool_ids": pl.Boolean(),  # the model itself writes the ids of its tool calls
}

PLACEHOLDERS = (
    "n/a", "na", "none", "null", "nan", "undefined", "todo", "tbd", "placeholder", "...", "…",
    "-", "--", "<nooutput>", "<no output>", "<noinput>", "[no response]", "[no output]",
    "(no response)", "no response", "no output", "[empty]", "<empty>", "[response]", "[answer]",
    "<answer>", "[deleted]", "[removed]", "[redacted]", "lorem ipsum", "insert answer here",
    "[insert answer here]", "string", "[object object]",
)  # fmt: skip

REFUSALS = (
    "i'm sorry, but i can", "i am sorry, but i can", "i'm sorry, i can", "i can't help with",
    "i cannot help with", "i can not help with", "i can't assist", "i cannot assist",
    "i can't provide", "i cannot provide", "i'm unable to", "i am unable to", "i'm not able to",
    "i am not able to", "i cannot fulfill", "i can't fulfill", "i can't comply",
    "i cannot comply", "i won't be able to", "as an ai language model", "as an ai, i can",
    "i must decline", "i have to decline", "i refuse to", "抱歉，我不能", "抱歉，我无法",
    "对不起，我不能", "很抱歉，我无法", "我无法提供", "申し訳ありませんが",
    "извините, но я не могу", "lo siento, pero no puedo", "es tut mir leid, aber ich kann",
    "je suis désolé, mais je ne peux",
)  # fmt: skip

_REFUSING = (
    "sorry", "can't", "can’t", "cannot", "can not", "won't", "won’t", "able to", "As an AI",
    "as an AI", "decline", "refuse", "抱歉", "对不起", "无法", "申し訳", "звините", "siento",
    "leid", "désolé",
)  # fmt: skip
"""A refusal holds one of these; looking for them costs a third of looking for the phrases."""
_VARIABLE_HINTS = ("{{", "}", "%s", "<INSERT", "[INSERT", "<insert", "[insert")
_VARIABLE = (
    r"(\{\{\s*[A-Za-z_][A-Za-z0-9_. ]{0,40}\}\}"
    r"|\$?\{(?i:input|inputs|question|query|prompt|instruction|context|text|user_input|user_query|topic|document|passage"
    r"|problem|article|content|message|answer|example|language)\}"
    r"|(?:^|[\s\"'(:])%s(?:$|[\s\"').,?!])"
    r"|[<\[](?i:insert)[ _][^<>\[\]\n]{1,60}[>\]])"
)
_RAW_CALLS = (
    "<tool_call>", "<|tool_call", "<|tool_calls_section_begin|>", "[TOOL_CALLS]", "<function=",
    "<function_call", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<|python_tag|>",
    "<｜DSML｜", "<invoke name=",
)  # fmt: skip
_UNFINISHED = (
    r"(?:[,(\[{=+]"
    r"|[ \n](?:a|an|the|and|or|of|to|with|in|for|by|from|that|which|is|are|as|because))$"
)


def answers(frame: pl.DataFrame, profile: Profile | None = None) -> pl.DataFrame:
    """ANSWER_COLUMNS of a frame, one row for one row."""
    frame = frame.select("content", "reasoning", "user_text", "system_text", "tools_json")
    content = pl.col("content")
    last = pl.when(content.str.len_bytes() > 0).then("content").otherwise("reasoning")
    first = last.str.head(1)
    opening = content.str.head(200).str.replace_all("’", "'", literal=True)
    tail = content.str.tail(14)
    prompt = pl.concat_str("user_text", "system_text", separator="\n", ignore_nulls=True)
    cheap = frame.select(
        pl.when(last.str.strip_chars_start(first) == "").then(first).alias("one_char"),
        last.str.len_bytes().cast(pl.Int64).alias("bytes"),
        tail.str.extract(f"({_UNFINISHED})").str.strip_chars().alias("half_end"),
        content.str.contains("```", literal=True).alias("fenced"),
        (content.str.len_bytes() <= 40).alias("short"),
        content.str.head(80).str.contains_any(list(_REFUSING)).alias("refusing"),
        prompt.str.contains_any(list(_VARIABLE_HINTS)).alias("variable"),
        pl.col("tools_json").is_not_null().alias("tools"),
    )
    bare = content.str.strip_chars().str.to_lowercase()
    asked = prompt.str.to_lowercase().str.contains(bare, literal=True)
    outside_code = prompt.str.replace_all(r"(?s)```.*?(?:```|\z)|`[^`\n]*`", " ")
    variable = outside_code.str.extract(_VARIABLE).str.strip_chars(" \n\t\"'(:).,?!")
    sentence = opening.str.to_lowercase().str.extract(r"^([^.!?\n。！？]*)")
    answer = pl.concat_str("content", "reasoning", ignore_nulls=True)
    fences = content.str.find_many(["```"]).list.len()  # 0.6 µs a record, count_matches 4
    rare = pl.DataFrame(
        [
            _on_rows(frame, cheap["fenced"], "open_fence", fences % 2 == 1),
            _on_rows(
                frame,
                cheap["short"],
                "placeholder_answer",
                bare.is_in(PLACEHOLDERS) & ~asked.fill_null(False),
            ),
            _on_rows(
                frame,
                cheap["refusing"],
                "refusal",
                sentence.str.extract_many(list(REFUSALS)).list.first(),
            ),
            _on_rows(frame, cheap["variable"], "prompt_variable", variable),
            _on_rows(
                frame,
                cheap["tools"],
                "raw_tool_call",
                answer.str.extract_many(list(_RAW_CALLS)).list.first(),
            ),
        ]
    )
    return (
        cheap.hstack(rare)
        .with_columns(
            one_char_length=pl.when(pl.col("one_char").is_not_null()).then(
                pl.col("bytes") // pl.col("one_char").str.len_bytes()
            ),
            prompt_only_variable=frame["user_text"].str.strip_chars() == rare["prompt_variable"],
            profile_vocab_size=pl.lit(profile.vocab_size if profile else None),
            profile_tool_ids=pl.lit(
                "{id}" in profile.tools.call if profile and profile.tools else None
            ),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in ANSWER_COLUMNS.items())
    )


def _on_rows(frame: pl.DataFrame, rows: pl.Series, name: str, value: pl.Expr) -> pl.Series:
    """ANSWER_COLUMNS[name]: `value` on the rows marked true, null elsewhere and not evaluated
    there."""
    whole = pl.Series(name, [None] * frame.height, dtype=ANSWER_COLUMNS[name])
    marked = rows.arg_true()
    if not len(marked):
        return whole
    return whole.scatter(marked, frame[marked].select(value.cast(ANSWER_COLUMNS[name])).to_series())
