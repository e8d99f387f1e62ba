"""How questions and answers are laid out as text, and what each part of an answer counts in the loss."""

from __future__ import annotations

from typing import NamedTuple

USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|end|>"
TURN_TOKENS = (USER, ASSISTANT, END)

STORY_WEIGHT, QUESTION_WEIGHT, ANSWER_WEIGHT, KEY_WEIGHT = 0.5, 0.2, 2.0, 6.0


class Asked(NamedTuple):
    """A question, its answer, and the word of the answer that decides ("" if it is the whole answer)."""

    text: str
    answer: str
    key: str = ""


def question_pieces(questions: list[Asked], form: str, opening: str = "") -> list[tuple[str, float]]:
    """Lay out questions and answers as plain text (`form` "plain", "lines") or with turn tokens ("turns").

    Gives pieces of text with their loss weights. The word that decides is a piece of its own and counts most: the
    words around it follow from the question.
    """
    pieces: list[tuple[str, float]] = []
    if form == "turns":
        for number, one in enumerate(questions):
            told = f" {opening} {one.text}" if opening and number == 0 else f" {one.text}"
            pieces += [(f"{USER}{told}{ASSISTANT}", QUESTION_WEIGHT), *answer_pieces(one, END)]
        return pieces
    if opening:
        pieces.append((f" {opening}", STORY_WEIGHT))
    gap = "\n" if form == "lines" else ""
    for one in questions:
        pieces += [(f"{gap} Question: {one.text}{gap} Answer:", QUESTION_WEIGHT), *answer_pieces(one)]
    if not opening and gap:
        pieces[0] = (pieces[0][0].removeprefix(gap), pieces[0][1])
    return pieces


def answer_pieces(asked: Asked, ending: str = "") -> list[tuple[str, float]]:
    """Split an answer around the word that decides."""
    told = f" {asked.answer}{ending}"
    before, key, after = told.partition(f" {asked.key}") if asked.key else (told, "", "")
    parts = ((before, ANSWER_WEIGHT), (key, KEY_WEIGHT), (after, ANSWER_WEIGHT))
    return [(text, weight) for text, weight in parts if text]
