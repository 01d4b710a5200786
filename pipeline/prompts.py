"""The prompts of the story: tasks × subjects, each pair once, in an order that never changes.

What enters: how many are captured and how many are held out. What leaves: two lists of rows as
`generate` reads them, no prompt in both.
"""

from __future__ import annotations

import random

SEED = 5
TASKS = (
    "Explain {} to a ten-year-old in three sentences.",
    "List five facts about {}.",
    "Write a short paragraph about {}.",
    "What is {}? Answer in two sentences.",
    "Give three reasons why {} matters.",
    "Write a short poem about {}.",
    "Write three questions that a teacher could ask about {}.",
    "Name two advantages and two disadvantages of {}.",
    "Write the beginning of a story in which {} is important.",
    "Describe {} in one simple sentence, then give an example.",
)
SUBJECTS = (
    *("the water cycle", "photosynthesis", "gravity", "the moon", "earthquakes", "volcanoes"),
    *(
        "the internet",
        "electric cars",
        "solar power",
        "wind power",
        "recycling",
        "public transport",
    ),
    *("the printing press", "the steam engine", "the telephone", "the compass", "paper", "glass"),
    *("honey bees", "whales", "penguins", "elephants", "spiders", "migrating birds"),
    *("democracy", "money", "taxes", "trade", "a contract", "an election"),
    *("football", "chess", "swimming", "running", "yoga", "hiking"),
    *("bread", "cheese", "rice", "chocolate", "coffee", "tea"),
    *("a library", "a museum", "a hospital", "a school", "a bridge", "a harbour"),
    *("music", "painting", "dance", "theatre", "photography", "poetry"),
    *("fractions", "prime numbers", "probability", "triangles", "the number zero", "averages"),
    *("a database", "an operating system", "a compiler", "encryption", "a web browser", "backups"),
    *("sleep", "exercise", "vaccines", "the heart", "the brain", "healthy food"),
    *("the ocean", "rivers", "deserts", "rainforests", "mountains", "the weather"),
    *("friendship", "honesty", "patience", "courage", "curiosity", "teamwork"),
    *("ancient Rome", "ancient Egypt", "the Silk Road", "the Renaissance", "castles", "ships"),
    *("batteries", "magnets", "light", "sound", "heat", "ice"),
    *("a garden", "trees", "flowers", "soil", "seeds", "the seasons"),
)


def prompts(
    captured: int, held_out: int
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Rows with an id and one user turn. Raises ValueError when there are not as many."""
    pairs = [task.format(subject) for task in TASKS for subject in SUBJECTS]
    if captured + held_out > len(pairs):
        raise ValueError(f"{captured + held_out:,} prompts are wanted, there are {len(pairs):,}")
    random.Random(SEED).shuffle(pairs)
    rows: list[dict[str, object]] = [
        {"id": f"prompt-{i:04}", "messages": [{"role": "user", "content": text}]}
        for i, text in enumerate(pairs)
    ]
    return rows[held_out : held_out + captured], rows[:held_out]
