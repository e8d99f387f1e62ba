"""Requests for the simulation: a mixture of short and long ones from a seed, or a file of lengths."""

import csv
import io
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from haaw.errors import BadInputError

MOST_REQUESTS = 100_000
MOST_TOKENS = 5_000_000
LARGEST_LENGTH = 2**24
COLUMNS = ("prompt", "answer", "limit", "arrival")
LIMITS = (128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Request:
    """Tokens of a prompt and of its answer, the most that the answer was allowed, and the step of its arrival.

    How long the answer gets is known only when it ends; `limit` is what whoever reserves memory knows before.
    """

    prompt: int
    answer: int
    limit: int
    arrival: int = 0

    @property
    def held(self) -> int:
        """Positions held at the end: the token chosen last never enters the cache."""
        return self.prompt + self.answer - 1

    @property
    def reserved(self) -> int:
        """Positions that the longest answer would hold."""
        return self.prompt + self.limit - 1


def random_requests(count: int, *, seed: int, context: int, gap: float = 4.0) -> list[Request]:
    """Short and long requests, three to one, as they come: prompts and answers of log-normal lengths.

    Short: prompts around 60 tokens, answers around 80; long: around 1,200 and 300. The limit of an answer is the
    next of 128, 256, … that leaves it room. Arrivals are `gap` steps apart on average. All within `context`.
    """
    if not 1 <= count <= MOST_REQUESTS:
        raise BadInputError(f"requests is {count}; from 1 to {MOST_REQUESTS:,} are simulated")
    if context < 2:
        raise BadInputError(f"context is {context}; a request needs at least 2 positions")
    rng = np.random.Generator(np.random.Philox(key=[seed % 2**64, 0]))
    requests, arrival = [], 0.0
    for _ in range(count):
        long = rng.random() < 0.25
        prompt = int(np.exp(rng.normal(np.log(1200 if long else 60), 0.6)))
        answer = int(np.exp(rng.normal(np.log(300 if long else 80), 0.7)))
        prompt = min(max(prompt, 1), context - 1)
        answer = min(max(answer, 1), context - prompt)
        limit = next((limit for limit in LIMITS if limit >= answer), answer)
        requests.append(Request(prompt, answer, min(limit, context - prompt), int(arrival)))
        arrival += rng.exponential(gap)
    return requests


def read_requests(text: str, *, context: int, name: str = "the file") -> list[Request]:
    """Requests from rows `prompt,answer` or `prompt,answer,limit` or `prompt,answer,limit,arrival`.

    A first row of these names, empty lines and lines that begin with # are skipped. Without a limit an answer may
    fill the context. Errors: `BadInputError` with the number of the row.
    """
    requests: list[Request] = []
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        fields = [each.strip() for each in row]
        if not any(fields) or fields[0].startswith("#"):
            continue
        if (
            not requests
            and tuple(each.lower() for each in fields) == COLUMNS[: len(fields)]
            and len(fields) > 1
        ):
            continue
        requests.append(_request(fields, context, f"{name}, row {number}"))
        if len(requests) > MOST_REQUESTS:
            raise BadInputError(f"{name} has more than {MOST_REQUESTS:,} requests; simulate a part of them")
    if not requests:
        raise BadInputError(f"{name} has no rows; write one request a line: prompt,answer")
    if any(later.arrival < earlier.arrival for earlier, later in pairwise(requests)):
        raise BadInputError(f"{name}: arrivals must not go back; sort the rows by arrival")
    return requests


def _request(fields: list[str], context: int, where: str) -> Request:
    if not 2 <= len(fields) <= len(COLUMNS):
        raise BadInputError(f"{where} has {len(fields)} fields; 2 to 4 are needed: {','.join(COLUMNS)}")
    values = {}
    for column, field in zip(COLUMNS, fields, strict=False):
        if not (field.isascii() and field.isdigit()) or len(field) > 12:
            raise BadInputError(f"{where}: {column} is {field!r:.40}; a whole number is needed")
        values[column] = int(field)
    for column in ("prompt", "answer", "limit"):
        if column in values and not 1 <= values[column] <= LARGEST_LENGTH:
            raise BadInputError(
                f"{where}: {column} is {values[column]}; from 1 to {LARGEST_LENGTH:,} is possible"
            )
    values.setdefault("limit", max(values["answer"], context - values["prompt"]))
    if values["answer"] > values["limit"]:
        raise BadInputError(
            f"{where}: the answer of {values['answer']} is longer than its limit {values['limit']}"
        )
    return Request(values["prompt"], values["answer"], values["limit"], values.get("arrival", 0))
