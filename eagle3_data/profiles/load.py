"""Profiles by name or by file.

What enters: the name of a shipped profile, or the path of a TOML file of the house. What leaves: a
checked `Profile`. It promises that an unknown key, a wrong type or a template that cannot be
written is refused with `file: key: reason`, and that an unknown name is answered with the names
there are.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from pydantic import ValidationError

from eagle3_data.profiles.profile import Profile


class ProfileError(ValueError):
    """A profile that is not there or not sound. The message names file, key and next step."""


_SLOT = re.compile(r"\{(\w+)\}")
_VERSIONS = re.compile(r"\s*(==|!=|>=|<=|>|<)\s*v?[0-9]+(\.[0-9]+)*\s*")


def load(name_or_path: str) -> Profile:
    """The shipped profile of that name, or the profile in a `.toml` file. Raises ProfileError."""
    if name_or_path.endswith(".toml"):
        path = Path(name_or_path)
        try:
            body = path.read_bytes()
        except OSError as error:
            raise ProfileError(
                f"{path}: cannot be read ({error.strerror}): check the path"
            ) from error
        return parse(body, str(path))
    shipped = _shipped()
    found = shipped.get(name_or_path.lower())
    if found is not None:
        return found
    near = [n for n in shipped if n.startswith(name_or_path.lower())]
    near = near or get_close_matches(name_or_path.lower(), shipped, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ProfileError(
        f"no profile {name_or_path!r}: {hint}There are {', '.join(shipped)}; "
        "a file of your own must end in .toml"
    )


def available() -> list[Profile]:
    """All shipped profiles, by name."""
    return list(_shipped().values())


def fingerprint(profile: Profile) -> str:
    """sha256 (hex) over the profile as canonical JSON: the same facts, the same fingerprint."""
    facts = profile.model_dump(mode="json")
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def parse(body: bytes, file: str) -> Profile:
    """Read one TOML profile; `file` is its name in messages. Raises ProfileError."""
    try:
        facts = tomllib.loads(body.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProfileError(f"{file}: not TOML ({error}): mend the file") from error
    try:
        # JSON mode is strict about types ("5" is no id) and still reads lists as tuples.
        profile = Profile.model_validate_json(json.dumps(facts), strict=True)
    except TypeError as error:  # a TOML date has no JSON form, and no key of a profile takes one
        raise ProfileError(f"{file}: a profile holds no dates ({error})") from error
    except ValidationError as error:
        reasons = [
            f"{file}: {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5]
        ]
        raise ProfileError("\n".join(reasons)) from error
    faults = [f"{file}: {fault}" for fault in _faults(profile)]
    if faults:
        raise ProfileError("\n".join(faults))
    return profile


def _faults(profile: Profile) -> Iterator[str]:
    """What the types cannot say: slots of templates, where the opening marker stands, versions."""
    on, off = profile.completion.thinking_on, profile.completion.thinking_off
    for key, template, needed, allowed in (
        ("completion.thinking_on", on, {"reasoning", "content"}, {"reasoning", "content", "tools"}),
        ("completion.thinking_off", off, {"content"}, {"content", "tools"}),
        ("prompt.message", profile.prompt.message, {"content"}, {"role", "content"}),
        (
            "tools.call",
            profile.tools.call if profile.tools else None,
            {"arguments"},
            {"id", "name", "arguments"},
        ),
    ):
        if template is None:
            continue
        slots = _SLOT.findall(template)
        if missing := needed - set(slots):
            yield f"{key}: needs {{{sorted(missing)[0]}}}"
        if strange := set(slots) - allowed:
            names = ", ".join(f"{{{name}}}" for name in sorted(allowed))
            yield f"{key}: {{{sorted(strange)[0]}}} is no slot (there are {names})"
        if len(slots) - slots.count("role") != len(set(slots) - {"role"}):
            yield f"{key}: names a slot twice"
    if on is not None and profile.think_open is not None and profile.open_in_prompt is not None:
        sampled = profile.think_open.text in on.split("{reasoning}")[0]
        if sampled is profile.open_in_prompt:
            says = "is in the prompt" if profile.open_in_prompt else "is sampled"
            yield f"completion.thinking_on: open_in_prompt says that the opening marker {says}"
    for i, strip in enumerate(profile.strips):
        if strip.versions and not all(map(_VERSIONS.fullmatch, strip.versions.split(","))):
            yield f"strips.{i}.versions: {strip.versions!r} is no list like '>=0.25,<0.34'"


@cache
def _shipped() -> Mapping[str, Profile]:
    found = [
        parse(file.read_bytes(), file.name)
        for file in _directory().iterdir()
        if file.name.endswith(".toml")
    ]
    return {profile.name: profile for profile in sorted(found, key=lambda p: p.name)}


def _directory() -> Traversable:
    """`_profiles` in an installed wheel, `schemas/profiles` beside the package in a checkout."""
    package = files("eagle3_data")
    packed = package / "_profiles"
    return packed if packed.is_dir() else Path(str(package)).parent / "schemas" / "profiles"
