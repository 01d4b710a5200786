"""`profiles`, `profile show`, `profile check`: what is known of each model family, and its proof.

What enters: the name of a profile or a TOML file, and a tokenizer. What leaves: a table, a page,
or a list of proofs. It promises exit code 1 when a marker of the profile is not what the tokenizer
has.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from eagle3_data.cli import console, options
from eagle3_data.cli.faults import Exit

if TYPE_CHECKING:
    from eagle3_data.profiles.profile import Profile

NameOrFile = Annotated[
    str, typer.Argument(metavar="NAME|FILE.toml", help="A shipped profile, or a file of your own.")
]


def profiles(json: options.Json = False) -> None:
    """List the shipped profiles: the model families and what is known of them.

    Example: eagle3-data profiles
    """
    from eagle3_data.profiles.load import available

    known = available()
    if json:
        console.data([one.model_dump(mode="json") for one in known])
        return
    width = max(len(one.name) for one in known)
    lines = [
        f"{one.name:{width}}  {one.thinking.value:7}  {_opening(one):20}  {one.title}"
        for one in known
    ]
    console.result(
        "\n".join([f"{'name':{width}}  thinks   opening marker        model family", *lines])
    )


def profile_show(name: NameOrFile, json: options.Json = False) -> None:
    """Show one profile.

    Example: eagle3-data profile show qwen3-hybrid
    """
    from eagle3_data.profiles.load import load

    shown = load(name)
    if json:
        console.data(shown.model_dump(mode="json"))
        return
    facts = shown.model_dump(mode="json", exclude_defaults=True)
    width = max(len(key) for key in facts)
    console.result("\n".join(_fact(key, value, width) for key, value in facts.items()))


def profile_check(
    name: NameOrFile,
    tokenizer: Annotated[
        str,
        typer.Option(metavar="DIR", help="Tokenizer of the target model: a folder or file."),
    ],
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Prove each marker of a profile against a tokenizer. Exit 1 when something differs.

    Example: eagle3-data profile check qwen3-hybrid --tokenizer ./Qwen3-8B
    """
    from eagle3_data.profiles.load import load
    from eagle3_data.profiles.prove import prove
    from eagle3_data.tokens.tokenizer import open_tokenizer

    proofs = prove(load(name), open_tokenizer(tokenizer))
    failed = sum(proof.failed for proof in proofs)
    if json:
        console.data([{**asdict(proof), "failed": proof.failed} for proof in proofs])
    else:
        width = max((len(proof.marker) for proof in proofs), default=0)
        for proof in proofs:
            mark = "DIFFERS" if proof.failed else "ok"
            console.result(console.visible(f"{mark:8}{proof.marker:{width}}  {proof.reason}"))
        told = f"{failed} differ" if failed else "none differs"
        console.result(f"{len(proofs)} markers looked up, {told}")
    raise typer.Exit(Exit.FINDINGS if failed else Exit.CLEAN)


profile = typer.Typer(
    help="Look at one profile, or prove it against a tokenizer.", no_args_is_help=True
)
profile.command("check")(profile_check)
profile.command("show")(profile_show)


def _fact(key: str, value: object, width: int) -> str:
    """One key of a profile on one line, a list or table one line an entry."""
    import orjson

    def spelled(part: object) -> str:
        return part if isinstance(part, str) and key == "notes" else orjson.dumps(part).decode()

    parts = (
        value if isinstance(value, list) else str(value).splitlines() if key == "notes" else [value]
    )
    lines = f"\n{'':{width}}  ".join(spelled(part) for part in parts)
    return f"{key:{width}}  {console.visible(lines)}"


def _opening(one: Profile) -> str:
    if one.open_in_prompt is None:
        return "none" if one.thinking == "never" else "not known"
    return "in the prompt" if one.open_in_prompt else "sampled"
