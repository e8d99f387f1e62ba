"""Writes the model card: data, recipe, figures, limits and samples, all taken from the report."""

# The lines are wrapped for the reader of the card, with the values filled in, not for the reader of the code.
# ruff: noqa: E501

from __future__ import annotations

from weights_tools.train.asking import ANSWER_WEIGHT, KEY_WEIGHT, QUESTION_WEIGHT, STORY_WEIGHT
from weights_tools.train.documents import (
    COPY_WEIGHT,
    EARLY_MIXTURE,
    LATE_MIXTURE,
    STORY_MARK,
    TELLING_FACTOR,
)
from weights_tools.train.drills import PAIR_WEIGHT
from weights_tools.train.examine import Mark
from weights_tools.train.recipe import Recipe
from weights_tools.train.report import Report
from weights_tools.train.shapes import SHAPES

SAMPLES = 10


def write_card(
    report: Report,
    recipe: Recipe,
    *,
    parameters: int,
    size_bytes: int,
    tokens: int,
    minutes: float,
    note: str = "",
) -> str:
    """Give the card as Markdown; `note` is a sentence about how this training differed from its recipe."""
    parts = [
        _head(recipe, parameters, size_bytes),
        _data(),
        _recipe(recipe, tokens, minutes, note),
        _figures(report),
        _by_candidates(report),
        _stories(report),
        _heads(report),
        _limits(),
        _samples(report),
    ]
    return "\n\n".join(parts) + "\n"


def percent(share: float) -> str:
    """Write a share from 0 to 1 as a percentage with one decimal."""
    return f"{100 * share:.1f} %"


def _head(recipe: Recipe, parameters: int, size_bytes: int) -> str:
    shape = recipe.shape
    return f"""# tiny: the embedded model of HAAW

A very small language model that was made to be looked into. It tells short stories about a small world, answers
questions about them, repeats lists, knows sums to twenty and can say how inference works. Licence: Apache-2.0.

- {parameters:,} parameters, Llama style: width {shape.width}, {shape.layers} layers, {shape.heads} query heads and
  {shape.kv_heads} key/value heads of {shape.head_dim} channels, MLP {shape.mlp_width}, RMSNorm, RoPE
  (base {shape.rope_base:g}), tied embeddings
- context {shape.context_tokens} tokens; {shape.vocabulary} SentencePiece pieces (BPE) with byte fallback: any text can be encoded
- one file, `tiny.gguf` ({size_bytes / 1e6:.2f} MB): float16 matrices, float32 norms, tokenizer and chat template
- prompts are continued as they are (`haaw.prompt` is `raw`); with the chat template, turns are marked by
  `<|user|>`, `<|assistant|>` and `<|end|>`. Plain questions read `Question: … Answer:`, those about a story
  `{STORY_MARK} … Question: … Answer:`"""


def _data() -> str:
    early, late = sum(EARLY_MIXTURE.values()), sum(LATE_MIXTURE.values())
    rows = "\n".join(
        f"| {sort} | {percent(EARLY_MIXTURE[sort] / early)} | {percent(LATE_MIXTURE[sort] / late)} |"
        for sort in LATE_MIXTURE
    )
    return f"""## Data

Only generated text; no text by other authors. A generator keeps the state of a small world (who is where, who has
what, what colour, how many) and tells stories in {len(SHAPES)} shapes from it; questions are answered from that state.
A drill is a story with questions after every few sentences; exchanges are drills of people who keep giving and taking
several things; first holders are people who hold several things, holder lists the same in single sentences, pair lists
pairs of words, asked for in another order. Lists are repeated exactly once. Before a story that questions follow stands `{STORY_MARK}`. Shares of the documents in the first part of the training and later:

| Documents | Early | Late |
|---|---|---|
{rows}

Weights in the loss: the deciding word of an answer {KEY_WEIGHT:g}, the rest of it {ANSWER_WEIGHT:g}, what is looked up in pairs {PAIR_WEIGHT:g}, second copies of lists {COPY_WEIGHT:g}, stories alone 1
(names, things, places and colours in them {TELLING_FACTOR:g}), stories before questions
{STORY_WEIGHT:g}, questions {QUESTION_WEIGHT:g}, first copies of lists 0."""


def _recipe(recipe: Recipe, tokens: int, minutes: float, note: str) -> str:
    repeats = "`haaw models train-tiny` repeats it: the same corpus and tokenizer byte for byte."
    if note:
        repeats = f"`haaw models train-tiny --from FILE` trains like this. {note}"
    return f"""## Recipe

{tokens / 1e6:.1f} million tokens in {minutes:.0f} minutes (wall clock, on a shared CPU), bfloat16 products,
float32 weights. Muon ({recipe.muon_lr:g}) for the layers' matrices, AdamW ({recipe.adam_lr:g}) for embedding and norms;
weight decay {recipe.muon_decay:g}; {recipe.batch_tokens} tokens a step; early documents until {percent(recipe.early_until)} of the time; rows of {recipe.short_tokens} tokens, from {percent(recipe.long_from)} of the time on rows of
{recipe.shape.context_tokens}; the rate falls in a straight line from {percent(recipe.decay_from)} on. Seed {recipe.seed}.
{repeats}"""


def _cell(marks: dict[str, Mark], sort: str) -> str:
    return percent(marks[sort].share) if sort in marks else "–"


def _figures(report: Report) -> str:
    rows = []
    for sort, one in report.marks.items():
        guess = percent(one.guess) if sort not in ("count", "sums") else "–"
        cells = (
            percent(one.share), _cell(report.at_the_end, sort), guess, _cell(report.untrained, sort),
            _cell(report.exchanged, sort),
        )  # fmt: skip
        rows.append(f"| {sort} | {' | '.join(cells)} |")
    count = next(iter(report.marks.values())).count
    table = "\n".join(rows)
    return f"""## Figures

{count} items of each sort, in worlds from other seeds than the training's, nothing simplified; an answer is right if
greedy decoding gives exactly the true sentence. "Late": the same items behind unrelated text, at the end of the context.
"Guess": the hit rate of naming any mentioned name or place. "Untrained": random weights. "Exchanged": the question
with another item's story. Sums and differences to 20 all occur in training: that figure tests memory.

| Question | Right | Late | Guess | Untrained | Exchanged |
|---|---|---|---|---|---|
{table}"""


def _by_candidates(report: Report) -> str:
    rows = []
    for sort, groups in report.by_candidates.items():
        for count, one in groups.items():
            number = f"{count} or more" if count == 6 else str(count)
            rows.append(f"| {sort} | {number} | {one.count} | {percent(one.share)} | {percent(one.guess)} |")
    return """By the number of names (or places) in the story that could be guessed:

| Question | Mentioned | Items | Right | Guess |
|---|---|---|---|---|
""" + "\n".join(rows)


def _stories(report: Report) -> str:
    told = report.fluency
    broken = ", ".join(
        f"{count} × {rule}" for rule, count in sorted(told.broken_rules.items(), key=lambda x: -x[1])[:6]
    )
    return f"""Of {len(told.stories)} stories sampled at temperature 0.7 from "Once upon a time", {percent(told.ended)} end by themselves with their closing
words and {percent(told.unbroken)} break no rule of the world; a sentence that the world does not have counts as broken.
The commonest first breaks: {broken or "none"}. Runs of 30 tokens shared with a sample of the training text: {percent(told.shared_runs)};
stories of the generator from another seed: {percent(told.shared_runs_of_generator)}."""


def _heads(report: Report) -> str:
    induction, pointing = report.induction, report.pointing
    (layer, head), points, costs = induction.best, pointing.by_attention, pointing.by_ablation
    others = [right for one, right in pointing.right_without.items() if one != costs]
    score, gain = induction.score_of[induction.best], pointing.attention_of[points]
    cost, rest = percent(pointing.right_without[costs]), f"{percent(min(others))} to {percent(max(others))}"
    return f"""## What the heads do

Layers and heads are counted from 0.

- Induction: on random tokens repeated at a lag of 50, layer {layer} head {head} puts a mean attention of {score:.3f}
  on what followed the same token before; {percent(induction.copied)} of the copies are right.
- "Who has it": from the word before the holder, layer {points[0]} head {points[1]} points most at the holder ({gain:+.3f} attention
  on the holder less that on all other names). With all heads {percent(pointing.right)} are right, without this head
  {percent(pointing.right_without[points])}. The head whose loss costs most is layer {costs[0]} head {costs[1]} ({cost} without it);
  without any one of the other heads {rest} are right."""


def _limits() -> str:
    return """## Limits

It knows nothing but its small world and says so in no other way than by being wrong. Sums are remembered, not worked
out. Names, things and places outside its vocabulary are spelled in bytes or small pieces, and it handles them badly.
Questions have to be worded as in training. It is not meant for any use but looking at how a language model works."""


def _samples(report: Report) -> str:
    told = report.fluency.stories[:SAMPLES]
    samples = "\n".join(f"{number}. {story}" for number, story in enumerate(told, 1))
    return f"## Samples\n\nThe first {len(told)} of the sampled stories, none left out.\n\n{samples}"
