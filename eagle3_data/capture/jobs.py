"""Jobs: what there is to ask, each identity once.

What enters: prompts, settings, the number of samples, identities that are stored already. What
leaves: jobs in the order of the prompts, and beforehand how many there are. It promises that a
prompt which stands twice in a file is asked once and told, and that prompts are read as they are
needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice

from eagle3_data.capture.prompts import Prompt, Prompts
from eagle3_data.capture.request import Json, Settings, body, identity


@dataclass(frozen=True, slots=True)
class Job:
    """One row to be. `asked`: the body without what only its server needs."""

    identity: bytes
    sample: int
    asked: Json
    id: str
    place: str


@dataclass(slots=True)
class Survey:
    """What a first reading of the prompts found."""

    prompts: int = 0
    jobs: int = 0
    """Rows wanted, each identity once."""
    stored: int = 0
    """Of them stored by an earlier run."""
    repeated: int = 0
    """Prompts that stand in the file before."""
    first_repeated: str | None = None
    own: Counter[str] = field(default_factory=Counter)
    """Settings that stand beside prompts and are not used → prompts with them."""


def jobs(prompts: Prompts, settings: Settings, *, samples: int, limit: int | None) -> Iterator[Job]:
    """Every row that is wanted, repeats included."""
    common = settings.common()
    for prompt in islice(prompts.read(), limit):
        yield from _of(prompt, common, samples)


def _of(prompt: Prompt, common: Json, samples: int) -> Iterator[Job]:
    for sample in range(samples):
        asked = body(prompt, common, sample)
        key = identity(asked, sample)
        name = key.hex() if prompt.id is None else prompt.id
        if sample and prompt.id is not None:
            name = f"{name}#{sample}"
        yield Job(key, sample, asked, name, prompt.place)


def survey(
    prompts: Prompts,
    settings: Settings,
    *,
    samples: int,
    limit: int | None,
    stored: Collection[bytes],
) -> Survey:
    """Read all prompts once, so that a bad line is told before the first request, not after hours.
    Raises InputError.
    """
    found, common, seen = Survey(), settings.common(), set[bytes]()
    for prompt in islice(prompts.read(), limit):
        found.prompts += 1
        found.own.update(prompt.own)
        fresh = False
        for job in _of(prompt, common, samples):
            if job.identity not in seen:
                seen.add(job.identity)
                fresh = True
                found.jobs += 1
                found.stored += job.identity in stored
        if not fresh:
            found.repeated += 1
            found.first_repeated = found.first_repeated or prompt.place
    return found
