"""One small tokenizer of every kind, built here, so that a clean clone tests them all."""

import io
import json
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from haaw.tokenizers import ByteLevelTokenizer, JsonTokenizer, SentencePieceTokenizer, Tokenizer

CORPUS = [
    "Once upon a time there was a little girl who lived in a house by the sea.",
    "The little dog ran to the sea and the girl ran after the dog.",
    "  Two spaces, a tab\tand naïve café déjà vu — “quoted” words.",
    "It is. Then it is not! Is it 123 or 4567?",
    "日本語のテキスト и русский текст 😀 🏳️‍🌈",
    "def f(n):\n    return n * f(n - 1)\n",
] * 4

TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "\t\n \n\n",
    "Hello world",
    " Hello  world ",
    "naïve café 😀 日本語 — “quotes”",
    "e\u0301x 🏳️\u200d🌈",
    "a:<s>->",
    "<0x0A> is text",
    "<|im_start|>user\nhi<|im_end|>",
    "nul \0 and bell \a",
    "don't 1234567",
]

MARKERS = ("<|im_start|>", "<|im_end|>")


def byte_alphabet() -> list[str]:
    """The 256 characters of byte-level BPE in byte order, taken from the tokenizers library."""
    from tokenizers import pre_tokenizers

    # The library's alphabet is a set; the printable bytes stand for themselves and the rest follow in order.
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    itself = {ord(c): c for c in alphabet if ord(c) < 256}
    rest = sorted(alphabet - set(itself.values()))
    others = iter(rest)
    return [itself.get(byte) or next(others) for byte in range(256)]


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    """GGUF metadata of a byte-level vocabulary: 256 bytes, five merges, two markers and a user-defined token.

    Ids: bytes 0 to 255; 256 'he', 257 'll', 258 'hell', 259 'hello', 260 'Ġhello'; 261 <|im_start|>,
    262 <|im_end|>, 263 '<tag>' (user-defined).
    """
    merges = ["h e", "l l", "he ll", "hell o", "Ġ hello"]
    tokens = [*byte_alphabet(), "he", "ll", "hell", "hello", "Ġhello", *MARKERS, "<tag>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [1] * 261 + [3, 3, 4],
        "tokenizer.ggml.bos_token_id": 261,
        "tokenizer.ggml.eos_token_id": 262,
    }
    return {**metadata, **changes}


def trained_model(**options: Any) -> bytes:
    """A SentencePiece model trained on the corpus."""
    import sentencepiece

    out = io.BytesIO()
    settings = {
        "model_type": "bpe",
        "vocab_size": 400,
        "byte_fallback": True,
        "character_coverage": 0.98,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "control_symbols": list(MARKERS),
        "minloglevel": 2,
        "num_threads": 1,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=out, **{**settings, **options}
    )
    return out.getvalue()


def gguf_of_model(model: bytes) -> dict[str, Any]:
    """The metadata that a converter writes for a trained model."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    ids = range(processor.get_piece_size())

    def kind(i: int) -> int:
        if processor.is_unknown(i):
            return 2
        if processor.is_control(i):
            return 3
        return 6 if processor.is_byte(i) else 1

    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [processor.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [processor.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": [kind(i) for i in ids],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def byte_level_json() -> str:
    """A tokenizer.json of byte-level BPE trained on the corpus."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<s>", *MARKERS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return str(tokenizer.to_str())


def spm_like_json(*, legacy: str) -> str:
    """A tokenizer.json of the Llama 2 form: BPE on `▁` with byte fallback; legacy "yes" or "no" (S28)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

    words = ["▁", "H", "i", "a", ":", "-", ">", "▁a", "->", "▁->", "Hi", "▁Hi", "<", "s", "0", "x", "A"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    merges = [("▁", "a"), ("-", ">"), ("▁", "->"), ("H", "i"), ("▁", "Hi")]
    tokenizer = Tokenizer(
        models.BPE({t: i for i, t in enumerate(tokens)}, merges, unk_token="<unk>", byte_fallback=True)
    )
    if legacy == "yes":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = [AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")]
    tokenizer.add_special_tokens(special)
    return str(tokenizer.to_str())


def word_json(decoder: Any) -> str:
    """A tokenizer.json of whole words with the given decoder of the tokenizers library (or None)."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[UNK]", "do", "##n", "'", "t", ".", "▁▁x", "▁", "▁It", "▁is", "a</w>", "b", "  c ", "é"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if decoder is not None:
        tokenizer.decoder = decoder
    return str(tokenizer.to_str())


def _decoder(name: str) -> Any:
    from tokenizers import decoders

    kinds: dict[str, Callable[[], Any]] = {
        "wordpiece": lambda: decoders.WordPiece(prefix="##", cleanup=True),
        "metaspace": lambda: decoders.Metaspace("▁", prepend_scheme="always"),
        "metaspace-never": lambda: decoders.Metaspace("▁", prepend_scheme="never"),
        "suffix": lambda: decoders.BPEDecoder(suffix="</w>"),
        "strip": lambda: decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 2)]
        ),
        "none": lambda: None,
    }
    return kinds[name]()


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level gguf": lambda: ByteLevelTokenizer.from_gguf(byte_level_metadata()),
    "sentencepiece bpe model": lambda: SentencePieceTokenizer.from_model(trained_model()),
    "sentencepiece unigram model": lambda: SentencePieceTokenizer.from_model(
        trained_model(
            model_type="unigram",
            vocab_size=180,
            byte_fallback=False,
            normalization_rule_name="nmt_nfkc",
            remove_extra_whitespaces=True,
            hard_vocab_limit=False,
        )
    ),
    "sentencepiece gguf": lambda: SentencePieceTokenizer.from_gguf(gguf_of_model(trained_model())),
    "byte-level json": lambda: JsonTokenizer(byte_level_json()),
    "spm-like json": lambda: JsonTokenizer(spm_like_json(legacy="no")),
    "spm-like legacy json": lambda: JsonTokenizer(spm_like_json(legacy="yes")),
    **{
        f"{name} json": (lambda name=name: JsonTokenizer(word_json(_decoder(name))))
        for name in ("wordpiece", "metaspace", "metaspace-never", "suffix", "strip", "none")
    },
}
_BUILT: dict[str, Tokenizer] = {}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """A small tokenizer of each kind in turn."""
    if request.param not in _BUILT:
        _BUILT[request.param] = KINDS[request.param]()
    return _BUILT[request.param]


@pytest.fixture
def build() -> Callable[[str], Tokenizer]:
    """Build the small tokenizer of the named kind anew."""
    return lambda kind: KINDS[kind]()


@pytest.fixture
def byte_level_gguf() -> Callable[..., dict[str, Any]]:
    """Metadata of the small byte-level vocabulary, with changes."""
    return byte_level_metadata


@pytest.fixture
def sentencepiece_model() -> Callable[..., bytes]:
    """Train a small SentencePiece model, with options."""
    return trained_model


@pytest.fixture
def sentencepiece_gguf() -> Callable[[bytes], dict[str, Any]]:
    """The GGUF metadata of a SentencePiece model."""
    return gguf_of_model


@pytest.fixture
def json_of() -> Callable[[str], str]:
    """The text of a small tokenizer.json by name."""

    def make(name: str) -> str:
        if name == "byte-level":
            return byte_level_json()
        if name.startswith("spm-like"):
            return spm_like_json(legacy="yes" if "legacy" in name else "no")
        return word_json(_decoder(name))

    return make


@pytest.fixture
def texts() -> list[str]:
    """Texts that have been trouble elsewhere."""
    return TEXTS


@pytest.fixture
def fresh_random() -> random.Random:
    """A random generator with a fresh seed, printed so that a failure can be repeated (HAAW_SEED)."""
    seed = int(os.environ.get("HAAW_SEED") or random.SystemRandom().randrange(2**32))
    print(f"seed: HAAW_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def changed_json() -> Callable[..., str]:
    """A tokenizer.json with some of its top-level entries replaced."""
    return lambda text, **changes: json.dumps({**json.loads(text), **changes})
