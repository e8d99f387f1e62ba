"""A conversation: what the model is told each time, other answers to the same question, and a full context."""

import pytest
from support.gguf_models import CHAT_TEMPLATE, END, TURN, llama_metadata
from support.tiny_models import tiny_language_model, tiny_llama

from haaw.errors import BadInputError
from haaw.generation.conversation import ContextFullError, Conversation
from haaw.generation.language_model import LanguageModel
from haaw.tokenizers import ChatTemplate, tokenizer_from_gguf

TOKENIZER = tokenizer_from_gguf(llama_metadata())
NEVER_ENDING = {END: float("-inf"), TURN: float("-inf")}
BIAS = {TOKENIZER.special_tokens()[name]: value for name, value in NEVER_ENDING.items()}
BIAS |= {byte: float("-inf") for byte in range(128, 263)} | {byte: float("-inf") for byte in range(32)}


def chat_model(context: int = 600) -> LanguageModel:
    """Answers with random printable ASCII, so that what was said reads back as it was."""
    transformer = tiny_llama(3, vocabulary_size=263, context_length_tokens=context)
    return LanguageModel("chatty", transformer, TOKENIZER, ChatTemplate(CHAT_TEMPLATE), prompt_form="chat")


def conversation(context: int = 600, **settings) -> Conversation:
    return Conversation(chat_model(context), **({"max_tokens": 8, "logit_bias": BIAS} | settings))


def told(request) -> str:
    """The whole prompt of a request, as the model sees it."""
    return TOKENIZER.decode(request.prompt_ids, special="show")


def say(talk: Conversation, question: str) -> str:
    request = talk.ask(question)
    request.run()
    return talk.keep(request).text


def test_each_question_brings_the_whole_history_with_it() -> None:
    """Written out by hand, after the template's own form."""
    talk = conversation(system="be kind")
    first = say(talk, "one?")
    request = talk.ask("two?")
    assert told(request) == (
        "<|im_start|>system\nbe kind<|im_end|>\n"
        "<|im_start|>user\none?<|im_end|>\n"
        f"<|im_start|>assistant\n{first}<|im_end|>\n"
        "<|im_start|>user\ntwo?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    second = request.run().text
    talk.keep(request)
    assert talk.messages == [
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "two?"},
        {"role": "assistant", "content": second},
    ]
    assert len(talk.answers) == 2


def test_an_answer_in_a_conversation_is_the_answer_to_its_messages_alone() -> None:
    talk = conversation()
    say(talk, "one?")
    request = talk.ask("two?")
    alone = chat_model().generate(
        [*talk.messages, {"role": "user", "content": "two?"}], max_tokens=8, logit_bias=BIAS
    )
    assert request.run().token_ids == alone.token_ids


def test_a_question_that_is_not_kept_leaves_no_trace() -> None:
    talk = conversation()
    talk.ask("one?").run()
    assert talk.messages == []
    assert "one?" not in told(talk.ask("two?"))


def test_reset_forgets_all_but_the_system_prompt() -> None:
    talk = conversation(system="be kind")
    say(talk, "one?")
    talk.reset()
    assert (talk.messages, talk.answers) == ([], [])
    assert told(talk.ask("two?")) == (
        "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\ntwo?<|im_end|>\n<|im_start|>assistant\n"
    )
    with pytest.raises(BadInputError, match="nothing was asked yet"):
        talk.retry()


def retried(seed: int | None) -> list[str]:
    """The answer to one question, then three retries."""
    talk = conversation(temperature=1.5, seed=seed)
    say(talk, "before?")
    texts = [say(talk, "one?")]
    for _ in range(3):
        request = talk.retry()
        assert told(request).endswith("<|im_start|>user\none?<|im_end|>\n<|im_start|>assistant\n")
        request.run()
        texts.append(talk.keep(request).text)
    assert talk.messages[-1]["content"] == texts[-1]  # the last answer takes the place of the earlier ones
    assert len(talk.messages) == 4
    return texts


def test_retry_gives_other_answers_and_a_seed_repeats_them() -> None:
    texts = retried(seed=7)
    assert len(set(texts)) == 4
    assert retried(seed=7) == texts
    assert retried(seed=8) != texts
    assert len(set(retried(seed=None))) == 4


def test_retry_at_temperature_0_gives_the_same_answer() -> None:
    talk = conversation()
    first = say(talk, "one?")
    request = talk.retry()
    assert request.run().text == first


def test_a_partial_answer_is_kept_and_can_be_tried_again() -> None:
    talk = conversation()
    request = talk.ask("one?")
    stream = iter(request)
    start = next(stream).text + next(stream).text
    request.cancel("keyboard")
    assert list(stream) == []
    answer = talk.keep(request)
    assert (answer.text, answer.finish.reason) == (start, "cancelled")
    assert talk.messages[-1] == {"role": "assistant", "content": start}
    again = talk.retry()
    assert again.run().text.startswith(start)
    assert len(again.answer.token_ids) == 8


def test_a_history_that_outgrows_the_context_is_refused_and_the_conversation_stays_usable() -> None:
    """Not cut silently (S25). What to do is said, and nothing is lost by the refusal."""
    talk = conversation(context=128)
    for _ in range(2):
        say(talk, "question of many?")
    before = list(talk.messages)
    with pytest.raises(ContextFullError, match=r"context of 128 tokens; reset it, or ask something shorter"):
        talk.ask("question of many?")
    assert len(before) == 2 * len(talk.answers) == 4
    with pytest.raises(ContextFullError):
        talk.ask("x" * 200)
    assert talk.messages == before
    assert isinstance(talk.retry().run().text, str)
    talk.reset()
    assert len(say(talk, "a new one?")) > 0


def test_a_history_that_fills_the_context_to_the_last_token_leaves_no_room_for_an_answer() -> None:
    """It ran, and its answer was empty."""
    talk = conversation(context=128)
    frame = len(talk.ask("").prompt_ids)
    with pytest.raises(ContextFullError):
        talk.ask("x" * (128 - frame))
    assert len(talk.ask("x" * (127 - frame)).run().token_ids) == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"top_p": 7}, "top_p is 7"),
        ({"stop": "a<|im_end|>"}, "control token"),
        ({"stop_ids": 999}, "999"),
        ({"logit_bias": {999: 1}}, "999"),
        ({"choice": 3}, "set by the conversation itself"),
        ({"form": "raw"}, "set by the conversation itself"),
        ({"no_such": 3}, 'unknown setting "no_such"'),
    ],
)
def test_settings_are_checked_when_the_conversation_begins(settings: dict, says: str) -> None:
    """They were checked at the first question."""
    with pytest.raises(BadInputError, match=says):
        Conversation(chat_model(), **settings)


def test_a_model_without_a_template_cannot_hold_a_conversation() -> None:
    with pytest.raises(BadInputError, match='"random" has no chat template'):
        Conversation(tiny_language_model(1))


def test_an_answer_is_kept_with_its_own_question():
    """The history once took the question that was asked last, whichever request was kept."""
    talk = conversation()
    first, second = talk.ask("7"), talk.ask("9")
    first.run()
    talk.keep(first)
    assert talk.messages[0]["content"] == "7"
    second.run()
    with pytest.raises(BadInputError, match="not of this conversation"):
        talk.keep(talk.model.request([7, 9]))
