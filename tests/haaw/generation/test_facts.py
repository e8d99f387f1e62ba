"""What a recorder is told beside operations: from the prompt's characters to what was released, at every end.

FAULTS: S1 to S3 (tokens within a character), S21 (counts come from ids), S100 (the first token's time), S101 (tokens
and pieces of text told apart), S103 (an interrupt at any moment).
"""

import gc
import math
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support.collecting import Collector
from support.gguf_models import CHAT_TEMPLATE, START, TURN, llama_metadata, tiny_gguf
from support.interrupts import interrupt_at, read_to_the_end
from support.scripted import ScriptedModel
from support.tiny_models import tiny_language_model, tiny_llama

import haaw
from haaw.caches.dynamic import DynamicCache
from haaw.caches.page_pool import PagePool
from haaw.generation.finish import Finish
from haaw.generation.language_model import LanguageModel
from haaw.generation.preparation import Preparation, token_places
from haaw.generation.request import Request
from haaw.generation.settings import make_settings
from haaw.generation.stop_strings import StopStrings
from haaw.ops.recorder import LISTENING, choosing_recorder
from haaw.tokenizers import SentencePieceTokenizer, tokenizer_from_gguf

TOKENIZER = tokenizer_from_gguf(
    llama_metadata()
)  # ids 0 to 255 are bytes, 256 to 258 control tokens, 259 is "he"
MIXED = "Zürich 🙂 hé — 東京, the 👩\u200d👧 end"


@pytest.fixture
def collector() -> Collector:
    return Collector()


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return haaw.load(tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", template=CHAT_TEMPLATE))


def recorded(model: LanguageModel, collector: Collector, prompt: Any, **options: Any) -> Request:
    with choosing_recorder(collector):
        return model.request(prompt, **options)


def scripted(
    collector: Collector | None,
    answer: Sequence[int],
    *,
    eos: Sequence[int] = (),
    before_step: Callable[[int], Any] = lambda step: None,
    context: int = 128,
    prompt_tokens: int = 5,
    **settings: Any,
) -> Request:
    """A request whose answer is known, over byte tokens."""
    model = ScriptedModel(
        answer,
        prompt_length=prompt_tokens,
        vocabulary_size=263,
        context_length_tokens=context,
        before_step=before_step,
    )

    class WithEnds:
        eos_ids = frozenset(eos)

        def __getattr__(self, name: str) -> Any:
            return getattr(TOKENIZER, name)

    return Request(
        model,
        WithEnds(),
        [65] * prompt_tokens,
        make_settings(**settings),
        make_cache=lambda: DynamicCache(model.cache_layout, model.prototype_Z),
        recorder=collector,
    )


# --- preparing


def touched(text: str, low: int, high: int) -> tuple[int, int]:
    """By definition: the characters whose bytes overlap the bytes low … high of a text."""
    at, found = 0, []
    for number, character in enumerate(text):
        size = len(character.encode())
        if at < high and at + size > low:
            found.append(number)
        at += size
    return found[0], found[-1] + 1


def test_each_byte_token_of_a_mixed_text_names_the_characters_that_it_holds(collector: Collector) -> None:
    """S1 to S3: an emoji over four tokens is one character, which all four of them name."""
    model = LanguageModel("bytes", tiny_llama(1, vocabulary_size=263), TOKENIZER)
    request = recorded(model, collector, MIXED, max_tokens=1)
    request.run()
    prepared, tokenised = collector.one("prepared"), collector.one("tokenised")
    assert (prepared["form"], prepared["text"], prepared["characters"]) == ("raw", MIXED, len(MIXED))
    assert tokenised["found_by"] == "bytes"
    at = 0
    for token_id, as_text, start, end, special in tokenised["tokens"]:
        piece = as_text.encode("latin-1")
        assert piece == TOKENIZER.token_bytes(token_id)
        assert (start, end) == touched(MIXED, at, at + len(piece))
        assert special == 0
        at += len(piece)
    assert at == len(MIXED.encode())
    assert [row[0] for row in tokenised["tokens"]] == list(request.prompt_ids)
    emoji = [row for row in tokenised["tokens"] if MIXED[row[2] : row[3]] == "🙂"]
    assert len(emoji) == 4
    assert len(tokenised["tokens"]) > prepared["characters"]  # tokens are not characters


def test_a_start_token_and_a_space_put_before_the_text_are_no_characters_of_it(collector: Collector) -> None:
    """SentencePiece adds both: "ab 🙂" is taken as BOS, " a", "b", " " and four bytes."""
    pieces = [
        b"<unk>",
        b"<s>",
        b"</s>",
        *(b"<0x%02X>" % byte for byte in range(256)),
        b" ",
        b"a",
        b"b",
        b" a",
    ]
    tokenizer = SentencePieceTokenizer.from_pieces(pieces, [0.0] * 259 + [-9.0, -8.0, -7.0, -1.0])
    model = LanguageModel("pieces", tiny_llama(1, vocabulary_size=263), tokenizer)
    recorded(model, collector, "ab 🙂", max_tokens=1).run()
    tokenised = collector.one("tokenised")
    assert [row[1:] for row in tokenised["tokens"]] == [
        ["<s>", 0, 0, 1],
        [" a", 0, 1, 0],
        ["b", 1, 2, 0],
        [" ", 2, 3, 0],
        *([chr(byte), 3, 4, 0] for byte in "🙂".encode()),
    ]
    assert tokenised["found_by"] == "bytes"


def test_the_embedded_model_takes_every_character_of_a_prompt_once(collector: Collector) -> None:
    request = recorded(haaw.load(), collector, "Anna 🙂 has", form="raw", max_tokens=1)
    request.run()
    rows = collector.one("tokenised")["tokens"]
    assert [row[0] for row in rows] == list(request.prompt_ids)
    joined = b"".join(row[1].encode("latin-1") for row in rows if not row[4])
    assert joined.lstrip() == b"Anna \xf0\x9f\x99\x82 has"
    assert {number for row in rows for number in range(row[2], row[3])} == set(range(len("Anna 🙂 has")))


def test_a_chat_says_where_each_message_lies_and_which_tokens_are_control_tokens(
    collector: Collector, chat_model: LanguageModel
) -> None:
    messages = [
        {"role": "user", "content": "  Zürich 🙂? "},
        {"role": "assistant", "content": f"a {TURN} b"},
        {"role": "user", "content": "he"},
    ]
    request = recorded(chat_model, collector, messages, system="Be kind.", max_tokens=1)
    request.run()
    prepared, tokenised = collector.one("prepared"), collector.one("tokenised")
    text = prepared["text"]
    assert prepared["form"] == "chat"
    assert prepared["roles"] == ["system", "user", "assistant", "user"]
    shown = [(role, text[start:end]) for role, start, end in prepared["contents"]]
    assert shown == [
        ("system", "Be kind."),
        ("user", "Zürich 🙂?"),
        ("assistant", f"a {TURN} b"),
        ("user", "he"),
    ]
    controls = [row for row in tokenised["tokens"] if row[4]]
    assert [text[row[2] : row[3]] for row in controls] == [START, TURN] * 4 + [START]
    inside = [text[row[2] : row[3]] for row in tokenised["tokens"] if not row[4]]
    assert TURN not in inside
    assert "".join(row[1] for row in tokenised["tokens"]).encode("latin-1").decode() == text


def test_a_prompt_of_ids_has_tokens_and_no_text(collector: Collector, chat_model: LanguageModel) -> None:
    recorded(chat_model, collector, [104, 259, 257], max_tokens=0).run()
    assert collector.one("prepared")["text"] is None
    assert collector.one("prepared")["form"] == "ids"
    tokenised = collector.one("tokenised")
    assert tokenised["found_by"] is None
    assert tokenised["tokens"] == [
        [104, "h", None, None, 0],
        [259, "he", None, None, 0],
        [257, START, None, None, 1],
    ]
    assert tokenised["columns"] == ["id", "bytes", "start", "end", "special"]


def test_tokens_of_a_normalised_text_are_placed_by_the_tokenizer() -> None:
    """Their bytes are not the text's, so that counting bytes would put every later token in the wrong place."""

    class Normalising:
        bos_id = 9

        def encode_spans(self, text: str) -> list[Any]:
            class Span:
                def __init__(self, token_id: int, start: int, end: int) -> None:
                    self.id, self.start, self.end = token_id, start, end

            return [Span(1, 0, 1), Span(2, 1, 2)]

    places, found_by = token_places("ﬁx", [9, 1, 2], [b"<s>", b"fi", b"x"], Normalising(), ())
    assert (places, found_by) == ([(0, 0), (0, 1), (1, 2)], "tokenizer")
    places, found_by = token_places("ﬁx", [1, 3], [b"fi", b"y"], Normalising(), ())
    assert (places, found_by) == ([(None, None)] * 2, None)


@pytest.mark.parametrize(
    ("tokens", "chunk", "expected"), [(7, 3, [[0, 3], [3, 6], [6, 7]]), (3, 3, [[0, 3]])]
)
def test_the_prompt_is_cut_as_the_facts_say(
    collector: Collector, tokens: int, chunk: int, expected: list
) -> None:
    request = scripted(collector, [97], prompt_tokens=tokens, prefill_chunk_tokens=chunk, max_tokens=1)
    request.run()
    assert collector.one("chunks") == {"tokens": tokens, "chunk_tokens": chunk, "chunks": expected}
    assert request._model.step_tokens == [end - start for start, end in expected]


@pytest.mark.parametrize("chunk", [3, 100])
def test_the_chunks_of_a_prompt_begin_behind_what_the_cache_had(collector: Collector, chunk: int) -> None:
    """Two blocks of four hold eight of the eleven tokens; the facts once said that all of them were computed."""
    model = tiny_language_model(1)
    transformer = model.transformer
    pool = PagePool(transformer.cache_layout, transformer.prototype_Z, blocks=20, block_size=4)
    options = {
        "cache": "paged",
        "cache_options": {"pool": pool},
        "max_tokens": 2,
        "prefill_chunk_tokens": chunk,
    }
    prompt = list(range(11))
    model.generate(prompt, **options)
    with choosing_recorder(collector):
        request = model.request(prompt, **options)
    assert request.run().reused_tokens == 8
    assert collector.one("chunks") == {"tokens": 11, "chunk_tokens": chunk, "chunks": [[8, 11]]}
    assert collector.kinds.index("prefix_lookup") < collector.kinds.index("chunks")


def test_a_request_without_a_cache_says_so_when_it_ends(collector: Collector) -> None:
    with choosing_recorder(collector):
        tiny_language_model(1).generate([1, 2, 3], max_tokens=2, cache="none")
    released = collector.one("released")
    assert (released["cache"], released["positions"], released["bytes"]) == ("none", 0, 0)


def test_preparing_costs_nothing_where_nobody_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any) -> None:
        raise AssertionError("facts were made that nobody asked for")

    monkeypatch.setattr(Preparation, "facts", never)
    model = LanguageModel("bytes", tiny_llama(1, vocabulary_size=263), TOKENIZER)
    assert model.request("hello", max_tokens=2).run().usage.completion_tokens == 2


def test_times_and_states_follow_one_another(collector: Collector, chat_model: LanguageModel) -> None:
    recorded(chat_model, collector, "hello", max_tokens=3, seed=1, temperature=1.0).run()
    states = collector.of("state")
    order = ["received", "prepared", "queued", "prefilling", "decoding", "finished"]
    assert [each["state"] for each in states] == order
    order = [kind if kind != "state" else facts["state"] for kind, facts, _ in collector.facts]
    assert order[:7] == ["received", "prepared", "tokenised", "settings", "prepared", "queued", "chunks"]
    assert order[7:11] == ["prefilling", "decoding", "candidates", "drawn"]
    moments = [states[0]["t_ns"], collector.one("prepared")["t_ns"], collector.one("tokenised")["t_ns"]]
    moments += [each["t_ns"] for each in states[1:]]
    assert all(a <= b for a, b in pairwise(moments))
    assert all(a["at_s"] <= b["at_s"] for a, b in pairwise(states))
    first_ns = states[0]["t_ns"]
    for state in states[1:]:
        assert abs((state["t_ns"] - first_ns) / 1e9 - state["at_s"]) < 0.05  # two looks at one clock
    settings = collector.one("settings")
    assert settings["asked"]["max_tokens"] == 3
    assert (settings["seed"], settings["plan"]) == (1, ["temperature", "draw"])


# --- choosing

DRAWN = {"temperature": 0.8, "top_k": 30, "top_p": 0.95, "min_p": 0.01, "seed": 2**64 - 1, "choice": 3}


def test_candidates_left_are_those_of_the_operations_and_the_draw_falls_where_it_says(
    collector: Collector,
) -> None:
    request = recorded(
        tiny_language_model(1), collector, [5, 9, 2], max_tokens=6, logit_bias={7: -math.inf}, **DRAWN
    )
    ids = list(request.run().token_ids)
    left = [facts["left"] for facts in collector.of("candidates")]
    names = {"candidates": "candidates", "keep_top_k": "top_k", "keep_top_p": "top_p", "keep_min_p": "min_p"}
    seen = [[names[op], length] for op, length in collector.lengths if op in names]
    assert [each for step in left for each in step] == seen
    assert all(step[0] == ["candidates", 63] and step[1] == ["top_k", 30] for step in left)
    assert [facts["vocabulary"] for facts in collector.of("candidates")] == [64] * 6
    draws = collector.of("drawn")
    assert [draw["token_id"] for draw in draws] == ids
    assert [draw["step"] for draw in draws] == list(range(6))
    for step, draw in enumerate(draws):
        philox = np.random.Philox(key=np.array([2**64 - 1, 3], np.uint64), counter=[0, step, 0, 0])
        assert draw["uniform"] == np.random.Generator(philox).random()
        assert 0 <= draw["below"] <= draw["uniform"] < draw["upto"] <= 1
        assert (draw["seed"], draw["choice"]) == (2**64 - 1, 3)


def test_the_share_of_the_mass_is_the_softmax_in_float64(collector: Collector) -> None:
    from haaw.generation.sampling import Sampler, SamplingPlan
    from haaw.ops.recorder import recording

    scores_V = np.array([0.5, -math.inf, 2.0, 1.0], np.float32)
    with recording(collector, stage="decode"):
        chosen = Sampler(SamplingPlan(temperature=1.0, seed=4), [0]).choose(scores_V)
    draw = collector.one("drawn")
    weights = np.exp(np.array([0.5, 2.0, 1.0]))  # of the candidates 0, 2 and 3
    shares = np.concatenate([[0], np.cumsum(weights) / weights.sum()])
    at = [0, 2, 3].index(chosen.token_id)
    np.testing.assert_allclose([draw["below"], draw["upto"]], shares[at : at + 2], atol=1e-6)


def test_greedy_choosing_tells_of_no_candidates(collector: Collector) -> None:
    recorded(tiny_language_model(1), collector, [5, 9], max_tokens=3).run()
    assert not {"candidates", "drawn"} & set(collector.kinds)


# --- delivering


def test_a_character_over_four_tokens_is_held_and_then_shown_once(collector: Collector) -> None:
    """S1 to S3, S101: four tokens, one character, and one piece of text that is not empty."""
    request = scripted(collector, [*"🙂".encode(), 33], max_tokens=5)
    answer = request.run()
    assert answer.text == "🙂!"
    assert [facts["undecoded_bytes"] for facts in collector.of("held")] == [1, 2, 3, 0]
    assert collector.of("held")[1]["undecoded"].encode("latin-1") == "🙂".encode()[:2]
    assert [facts["text"] for facts in collector.of("delta")] == ["", "", "", "🙂", "!"]
    assert b"".join(facts["bytes"].encode("latin-1") for facts in collector.of("delta")) == "🙂!".encode()
    phases = collector.one("phases")
    assert (phases["new_tokens"], phases["characters"], phases["prompt_tokens"]) == (5, 2, 5)


def test_the_first_tokens_time_is_that_of_a_token_and_not_of_the_first_text(collector: Collector) -> None:
    """S100: the first token may show nothing, and what comes first may be no token."""
    request = scripted(collector, "🙂".encode(), max_tokens=4)
    first = next(iter(request))
    assert (first.text, request.first_token_s) == ("", first.computed_s)
    request.close()
    assert collector.one("phases")["first_token_s"] == first.computed_s
    first_fact = next(facts for facts in collector.of("delta") if facts["token_id"] is not None)
    assert (first_fact["text"], first_fact["token_id"]) == ("", 0xF0)


def test_counts_come_from_ids_and_not_from_text_encoded_again(collector: Collector) -> None:
    """S21: "h" and "e" as two tokens read "he", which encodes to one."""
    answer = scripted(collector, b"he", max_tokens=2).run()
    assert answer.text == "he"
    assert TOKENIZER.encode("he") == [259]
    assert collector.one("phases")["new_tokens"] == len(answer.token_ids) == 2
    assert collector.answer() == ("he", [*b"he"])


def test_text_that_a_stop_could_begin_with_is_withheld_and_the_facts_say_for_which(
    collector: Collector,
) -> None:
    request = scripted(collector, b"xab?abcd", max_tokens=20, stop=["abcd", "b!", "zz"])
    answer = request.run()
    assert (answer.text, answer.finish) == ("xab?", Finish("stop_string", {"stop_string": "abcd"}))
    could = [facts["could_become"] for facts in collector.of("stop_matching")]
    assert could == [
        [["abcd", 1]],
        [["abcd", 2], ["b!", 1]],
        [["abcd", 1]],
        [["abcd", 2], ["b!", 1]],
        [["abcd", 3]],
        [],
    ]
    found = collector.of("stop_matching")[-1]
    assert (found["found"], found["at_character"]) == ("abcd", 4)
    withheld = [(facts["withheld"], facts["withheld_characters"]) for facts in collector.of("held")]
    assert withheld == [("a", 1), ("ab", 2), ("", 0), ("a", 1), ("ab", 2), ("abc", 3), ("", 0)]


def test_withheld_text_is_counted_in_characters_and_in_bytes(collector: Collector) -> None:
    scripted(collector, "é東".encode(), max_tokens=6, stop="é東京").run()
    most = max(collector.of("held"), key=lambda facts: facts["withheld_characters"])
    assert (most["withheld"], most["withheld_characters"], most["withheld_bytes"]) == ("é東", 2, 5)


# --- ends


def ctrl_c(step: int) -> None:
    if step == 4:
        raise KeyboardInterrupt


def broken(step: int) -> np.ndarray | None:
    return np.full(263, np.nan, np.float32) if step == 4 else None


TEXT = b"ab cd ef gh"
ENDS: dict[str, dict[str, Any]] = {
    "eos": {"eos": [ord("d")]},
    "stop_token": {"stop_ids": [ord("d")]},
    "stop_string": {"stop": ["cd"]},
    "tool_call": {"tool_call_markers": ("b", "d")},
    "length": {"max_tokens": 4},
    "context": {"context": 9},
    "deadline": {"deadline_s": 1e-9},
    "cancelled": {},
    "Ctrl-C": {"before_step": ctrl_c},
    "failed": {"before_step": broken},
    "abandoned": {},
    "abandoned and collected": {},
    "closed in the queue": {},
    "cancelled in the queue": {},
}


def bring_to_an_end(name: str, request: Request) -> None:
    if name == "closed in the queue":
        request.close("the teacher")
    elif name == "cancelled in the queue":
        request.cancel("the teacher")
        request.run()
    elif name.startswith("abandoned"):
        stream = iter(request)
        for _ in range(3):
            next(stream)
        if name == "abandoned":
            stream.close()
        del stream
        gc.collect()
    elif name == "cancelled":
        for number, _ in enumerate(request):
            if number == 2:
                thread = threading.Thread(target=request.cancel, args=("another thread",))
                thread.start()
                thread.join()
    else:
        with suppress(KeyboardInterrupt):
            request.run()


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("stop", [(), ("b cX",)], ids=["nothing held", "text held"])
def test_every_end_is_told_whole_and_in_order(name: str, stop: Sequence[str], collector: Collector) -> None:
    """Text that was still held back when a stream was abandoned was in the answer, and in no event."""
    options = {"max_tokens": 8} | ENDS[name]
    if stop:
        options["stop"] = [*options.get("stop", ()), *stop]
    request = scripted(collector, TEXT, prefill_chunk_tokens=2, **options)
    bring_to_an_end(name, request)
    answer = request.answer
    assert collector.one("finish") == answer.finish.to_dict() | {
        "evidence": collector.one("finish")["evidence"]
    }
    assert collector.one("finish")["evidence"].items() >= answer.finish.evidence.items()
    assert collector.answer() == (answer.text, list(answer.token_ids))
    assert "text_anew" not in collector.kinds or name == "Ctrl-C"
    ran = name not in ("deadline", "closed in the queue", "cancelled in the queue")
    states = [facts["state"] for facts in collector.of("state")]
    assert states[:3] == ["received", "prepared", "queued"]
    assert states[3:] == (["prefilling", "decoding", "finished"] if ran else ["finished"])
    order = [
        kind for kind in collector.kinds if kind in ("chunks", "settings", "finish", "released", "phases")
    ]
    assert order == ["settings", "chunks", "finish", *(["released"] if ran else []), "phases"]
    assert collector.kinds[-1] == "phases"
    assert collector.one("phases")["spent_s"] == answer.timing_s
    assert collector.one("phases")["new_tokens"] == len(answer.token_ids)
    if ran:
        released = collector.one("released")
        # One layer, 64 positions of keys and of values, 1 head of 2 channels, 4 bytes each.
        assert (released["cache"], released["bytes"]) == ("dynamic", 2 * 64 * 2 * 4)
    asked = {"cancelled": ["another thread"], "cancelled in the queue": ["the teacher"]}
    assert [facts["by"] for facts in collector.of("cancel_asked")] == asked.get(name, [])
    assert LISTENING.get() is None
    last = collector.facts[-1]
    assert (last[2].stage, last[2].request) == ("deliver", 1)


def test_closing_or_reading_on_after_the_end_tells_nothing_more(collector: Collector) -> None:
    request = scripted(collector, TEXT, max_tokens=2)
    request.run()
    told = len(collector.facts)
    request.close()
    request.cancel("too late")
    request.close()
    assert len(collector.facts) == told


def test_facts_of_alternating_requests_carry_their_own_number(collector: Collector) -> None:
    one, two = scripted(collector, b"abc", max_tokens=3), scripted(collector, b"xyz", max_tokens=3)
    for _ in zip(one, two, strict=True):
        pass
    for number, text in ((1, "abc"), (2, "xyz")):
        mine = [
            facts["text"]
            for kind, facts, scope in collector.facts
            if kind == "delta" and scope.request == number
        ]
        assert "".join(mine) == text
        kinds = [kind for kind, _, scope in collector.facts if scope.request == number]
        assert kinds.count("finish") == kinds.count("phases") == 1


def test_a_stream_that_is_dropped_within_another_requests_step_keeps_its_own_number(
    collector: Collector,
) -> None:
    """Collected garbage is cleaned up wherever the interpreter happens to be, as in a step of somebody else."""
    dropped = iter(scripted(collector, b"abcdef", max_tokens=6))
    next(dropped)
    holder = [dropped]
    del dropped

    def drop(step: int) -> None:
        if step == 1:
            holder.clear()
            gc.collect()

    scripted(collector, b"xyz", max_tokens=3, before_step=drop).run()
    finishes = {scope.request: facts["reason"] for kind, facts, scope in collector.facts if kind == "finish"}
    assert finishes == {1: "cancelled", 2: "length"}


@pytest.mark.parametrize("every", ["line", "instruction"])
@pytest.mark.parametrize("way", [Request.run, read_to_the_end])
@pytest.mark.parametrize("points", [120, pytest.param(2_000, marks=pytest.mark.long)])
def test_an_interrupt_at_any_moment_keeps_no_fact_away(
    way: Callable, every: str, points: int, seed: int
) -> None:
    """Ctrl-C between two instructions of the telling itself once left a trace without an end state."""
    settings = {"max_tokens": 4, "stop": ["é!"], "temperature": 0.02, "seed": 3, "prefill_chunk_tokens": 3}
    text = "aé東".encode()
    way(scripted(Collector(), text, **settings))
    request = scripted(Collector(), text, **settings)
    with interrupt_at(0, every=every) as counted:
        way(request)
    for point in random.Random(seed).sample(range(1, counted[0] + 1), min(points, counted[0])):
        collector = Collector()
        request = scripted(collector, text, **settings)
        with pytest.raises(KeyboardInterrupt), interrupt_at(point, every=every):
            way(request)
        if request.finish is None:  # it had not begun, and still can
            request.run()
        answer = request.answer
        assert collector.answer() == (answer.text, list(answer.token_ids)), point
        for kind in ("chunks", "settings", "finish", "phases"):
            told = collector.of(kind)
            assert told, (kind, point)
        assert all(facts["reason"] == answer.finish.reason for facts in collector.of("finish")), point
        assert {facts["state"] for facts in collector.of("state")} >= {"received", "queued", "finished"}, (
            point
        )
        assert LISTENING.get() is None


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (["aaab"], "aaa", [("aaab", 3)]),
        (["abab!", "b?", "zz"], "xabab", [("abab!", 4), ("b?", 1)]),
        (["aaab"], "aaaa", [("aaab", 3)]),
        (["abc"], "xy", []),
    ],
)
def test_a_stop_text_is_said_to_be_as_far_as_the_held_text_can_take_it(stops, text, expected) -> None:
    matching = StopStrings(stops)
    matching.push(text)
    assert matching.partial() == expected
