"""Whether an answer was sampled with thinking on: decided here, for the grammar and for the rules.

What enters: a profile. What leaves: Polars expressions over the request columns of the record
table. It promises that only the switch which the family's own template reads decides (Kimi's reads
`thinking` and ignores `enable_thinking`, which vLLM does not know), and that a request which does
not touch it leaves the family's default in force.
"""

from __future__ import annotations

import polars as pl

from eagle3_data.profiles.profile import Profile, Switch, Thinking

TEMPLATE_SERVERS = ("vllm", "sglang", "llama.cpp")
"""They hand `chat_template_kwargs` to the template and ignore a switch that stands beside it. A
model's own API, and a flat row that tells what was asked, hold the switch as a plain setting."""


def thinking_on(profile: Profile, *, shown: bool) -> pl.Expr:
    """Boolean, never null: by the family, then the request, then the family's default.

    `shown`: what is taken where neither family nor request says (other records hold thoughts).
    """
    if profile.thinking is Thinking.ALWAYS:
        return pl.lit(True)
    if profile.thinking is Thinking.NEVER:
        return pl.lit(False)
    default = shown if profile.thinking_default is None else profile.thinking_default
    return pl.coalesce(thinking_asked(profile), pl.lit(default))


def thinking_asked(profile: Profile) -> pl.Expr:
    """Boolean: what the request asked of this family; null where it said nothing that the template
    reads.

    A family without a switch is taken by `thinking_asked` of the record, which knows all the usual
    ones.
    """
    switch = profile.switch
    if switch is None:
        return pl.col("thinking_asked")
    spelled = pl.col("settings_json").str.contains(f'"{switch.key}"', literal=True)
    plain = ~pl.col("server").is_in(TEMPLATE_SERVERS).fill_null(False)
    # null where there is nothing to read, so that no JSON is parsed there
    settings = pl.when(plain & spelled).then(pl.col("settings_json"))
    return pl.coalesce(
        _read(pl.col("template_kwargs_json"), f"$['{switch.key}']", switch),
        _read(settings, f"$['{switch.key}']", switch),
        _read(settings, f"$['extra_body']['{switch.key}']", switch),
    )


def _read(text: pl.Expr, path: str, switch: Switch) -> pl.Expr:
    value = text.str.json_path_match(path)
    kind = value.str.extract(r'^\{"type":"(\w+)"')  # {"type": "disabled"}: Moonshot's, DeepSeek's
    return (
        pl.when((value == _text(switch.off)) | (kind == "disabled"))
        .then(pl.lit(False))
        .when((value == _text(switch.on)) | (kind == "enabled"))
        .then(pl.lit(True))
    )


def _text(value: bool | int | str) -> str:
    """As JSON writes it, a string without its quotes."""
    return str(value).lower() if isinstance(value, bool) else str(value)
