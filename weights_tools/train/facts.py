"""Short facts and sums: what the model can know without a story."""

from __future__ import annotations

import random

from weights_tools.train.words import DAYS, NUMBERS

Pair = tuple[str, str]

_FACTS = """
What colour is grass? = Grass is green.
What colour is the sky? = The sky is blue.
What colour is snow? = Snow is white.
What colour is a carrot? = A carrot is orange.
What colour is coal? = Coal is black.
What colour is a lemon? = A lemon is yellow.
What does a cow say? = A cow says moo.
What does a dog say? = A dog says woof.
What does a cat say? = A cat says meow.
What does a duck say? = A duck says quack.
What does a sheep say? = A sheep says baa.
What does a pig say? = A pig says oink.
What is the opposite of big? = The opposite of big is small.
What is the opposite of hot? = The opposite of hot is cold.
What is the opposite of up? = The opposite of up is down.
What is the opposite of day? = The opposite of day is night.
What is the opposite of wet? = The opposite of wet is dry.
What is the opposite of happy? = The opposite of happy is sad.
What is the opposite of old? = The opposite of old is young.
What is the opposite of fast? = The opposite of fast is slow.
How many legs does a dog have? = A dog has four legs.
How many legs does a hen have? = A hen has two legs.
How many legs does a spider have? = A spider has eight legs.
How many legs does a bee have? = A bee has six legs.
How many days are in a week? = A week has seven days.
How many months are in a year? = A year has twelve months.
Where does a fish live? = A fish lives in the water.
Where does a bird live? = A bird lives in a nest.
What do bees make? = Bees make honey.
What does a cow give? = A cow gives milk.
What does a hen lay? = A hen lays eggs.
"""

FACTS: tuple[Pair, ...] = tuple(
    (question.strip(), answer.strip())
    for question, answer in [line.split(" = ") for line in _FACTS.strip().splitlines()]
)


def sum_pair(first: int, second: int, sign: str, style: str) -> Pair:
    """Ask for a sum or difference, in words or in digits (`style`)."""
    result = first + second if sign == "plus" else first - second
    if style == "digits":
        mark = "+" if sign == "plus" else "-"
        return f"What is {first} {mark} {second}?", f"{first} {mark} {second} = {result}."
    said = f"{NUMBERS[first]} {sign} {NUMBERS[second]}"
    return f"What is {said}?", f"{said.capitalize()} is {NUMBERS[result]}."


def all_sums() -> list[tuple[int, int, str]]:
    """List every sum and difference of numbers from 0 to 20 that stays in that range."""
    sums = [(a, b, "plus") for a in range(21) for b in range(21 - a)]
    return sums + [(a, b, "minus") for a in range(21) for b in range(a + 1)]


def random_pair(rng: random.Random) -> Pair:
    """Draw a sum (mostly), a fact, or a question about the order of days and numbers."""
    draw = rng.random()
    if draw < 0.65:
        first, second, sign = rng.choice(all_sums())
        return sum_pair(first, second, sign, rng.choice(("words", "digits")))
    if draw < 0.85:
        return rng.choice(FACTS)
    if draw < 0.92:
        index = rng.randrange(7)
        return f"What day comes after {DAYS[index]}?", f"After {DAYS[index]} comes {DAYS[(index + 1) % 7]}."
    index = rng.randrange(20)
    return f"What number comes after {NUMBERS[index]}?", f"After {NUMBERS[index]} comes {NUMBERS[index + 1]}."
