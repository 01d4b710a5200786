"""The prompts of the story: forms with two places to fill, each pair once, in an order that never
changes.

What enters: how many are captured and how many are held out. What leaves: two lists of rows as
`generate` reads them, no prompt in both. The forms are such that a small model fills 128 tokens and
keeps to its patterns: a drafter of minutes' training learns forms, not the world.
"""

from __future__ import annotations

import random
from itertools import product

SEED = 5
ANIMALS = (
    *("fox", "bear", "rabbit", "owl", "turtle", "mouse", "cat", "dog", "horse", "frog"),
    *("lion", "duck", "squirrel", "whale", "bee"),
)
FINDS = (
    *("an old map", "a lost key", "a silver bell", "a broken clock", "a red balloon", "a letter"),
    *("a hidden door", "a small boat", "a golden feather", "a strange stone", "a blue lantern"),
    *("a music box", "a torn book", "a magic seed"),
)
PEOPLE = (
    *("my manager", "my teacher", "my landlord", "a customer", "a colleague", "my neighbour"),
    *("the school office", "my bank", "a job applicant", "the sports club", "my dentist"),
    *("the library", "a supplier", "my team"),
)
MATTERS = (
    *("a missed appointment", "a delayed delivery", "a broken heater", "a change of address"),
    *("a day off", "a late payment", "a lost card", "a new schedule", "a noise problem"),
    *("a meeting next week", "a wrong invoice", "a request for help", "a parking place"),
    *("a thank you note", "a cancelled order"),
)
SKILLS = (
    *("the guitar", "French", "chess", "swimming", "cooking", "drawing", "photography", "typing"),
    *("gardening", "public speaking", "the piano", "yoga", "knitting", "cycling"),
)
TIMES = (
    *("two weeks", "a month", "six weeks", "two months", "three months", "half a year", "a year"),
    *("ten days", "one summer", "twenty lessons", "five weekends", "a school term"),
    *("30 minutes a day", "an hour a week", "my free evenings"),
)
KINDS = (
    *("light", "cheap", "strong", "small", "modern", "wooden", "foldable", "quiet", "warm"),
    *("colourful", "waterproof", "smart", "simple", "handmade"),
)
PRODUCTS = (
    *("desk lamp", "backpack", "water bottle", "office chair", "umbrella", "tent", "blanket"),
    *("bicycle", "coffee mug", "suitcase", "headphone set", "kitchen knife", "toy train"),
    *("garden table", "winter jacket"),
)
FORMS = (
    ("Write a short story about a {} that finds {}.", ANIMALS, FINDS),
    ("Write a polite email to {} about {}.", PEOPLE, MATTERS),
    ("Give me a step-by-step plan to learn {} in {}.", SKILLS, TIMES),
    ("Write a product description for a {} {}.", KINDS, PRODUCTS),
    ("List seven reasons to buy a {} {}.", KINDS, PRODUCTS),
)


Row = dict[str, object]


def prompts(captured: int, held_out: int) -> tuple[list[Row], list[Row]]:
    """Rows with an id and one user turn. Raises ValueError when there are not as many."""
    texts = [form.format(*pair) for form, *slots in FORMS for pair in product(*slots)]
    if captured + held_out > len(texts):
        raise ValueError(f"{captured + held_out:,} prompts are wanted, there are {len(texts):,}")
    random.Random(SEED).shuffle(texts)
    rows: list[Row] = [
        {"id": f"prompt-{i:04}", "messages": [{"role": "user", "content": text}]}
        for i, text in enumerate(texts)
    ]
    return rows[held_out : held_out + captured], rows[:held_out]
