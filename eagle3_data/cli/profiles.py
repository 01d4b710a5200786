"""`profiles`, `profile show`, `profile check`: what is known of each model family, and its proof.

What enters: the name of a profile or a TOML file, and a tokenizer. What leaves: a table, a page,
or a list of proofs. It promises exit code 1 when a marker of the profile is not what the tokenizer
has.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagle3_data.cli import console
from eagle3_data.cli.faults import Exit
from eagle3_data.cli.options import Json, Verbose

if TYPE_CHECKING:
    from eagle3_data.profiles.profile import Profile

NameOrFile = Annotated[
    str, typer.Argument(metavar="NAME|FILE.toml", help="A shipped profile, or a file of your own.")
]


def profiles(json: Json = False) -> None:
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


def profile_show(name: NameOrFile, json: Json = False) -> None:
    """Show one profile.

    Example: eagle3-data profile show qwen3
    """
    from eagle3_data.profiles.load import load

    shown = load(name)
    if json:
        console.data(shown.model_dump(mode="json"))
        return
    facts = shown.model_dump(mode="json", exclude_defaults=True)
    console.result("\n".join(f"{key}: {_json(value)}" for key, value in facts.items()))


def profile_check(
    name: NameOrFile,
    tokenizer: Annotated[Path, typer.Option(metavar="DIR", help="Tokenizer of the target model.")],
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Prove each marker of a profile against a tokenizer. Exit code 1 when something differs.

    Example: eagle3-data profile check qwen3 --tokenizer ./Qwen3-8B
    """
    from eagle3_data.profiles.load import load
    from eagle3_data.profiles.prove import prove
    from eagle3_data.tokens.tokenizer import open_tokenizer

    proofs = prove(load(name), open_tokenizer(tokenizer))
    raise typer.Exit(Exit.CLEAN)


def _opening(one: Profile) -> str:
    if one.open_in_prompt is None:
        return "not known"
    return "in the prompt" if one.open_in_prompt else "sampled"
