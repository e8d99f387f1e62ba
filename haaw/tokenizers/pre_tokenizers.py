"""The pre-tokenizers that a GGUF can declare by name: which regular expressions cut a text into words.

Only names and patterns. The patterns are facts about the models, taken from the pre-tokenizer section of the
models' own `tokenizer.json` files and from the table that llama.cpp keeps (src/llama-vocab.cpp, the names of
`tokenizer.ggml.pre`). Each pattern cuts the pieces that the one before it left.
"""

from dataclasses import dataclass

from haaw.errors import BadInputError
from haaw.tokenizers.libraries import one_line


@dataclass(frozen=True)
class PreTokenizer:
    """How a text is cut before byte-pair merging, and the defaults that come with it.

    `whole_words` says that a word which is a token is taken as it is, without merging.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_CONTRACTION = r"'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE = f"(?i:{_CONTRACTION})"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = rf"\s*[\r\n]+|{_SPACES}"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"

_GPT_2 = rf"{_CONTRACTION}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_LLAMA_3 = rf"{_ANY_CASE}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|{_LINES}"
_QWEN_2 = rf"{_ANY_CASE}|{_WORD}|\p{{N}}|{_MARKS}|{_LINES}"
_TEKKEN = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"
)
_GPT_4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_ANY_CASE}?|{_LEAD}{_UPPER}+{_LOWER}*{_ANY_CASE}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"
)
_DEEPSEEK_3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

_KINDS: tuple[tuple[str, PreTokenizer], ...] = (
    (
        "gpt-2 phi-2 mpt olmo jais gigachat roberta-bpe jina-es jina-de jina-v1-en jina-v2-es jina-v2-de "
        "jina-v2-code",
        PreTokenizer((_GPT_2,)),
    ),
    ("smollm starcoder refact command-r codeshell exaone minerva-7b", PreTokenizer((r"\p{N}", _GPT_2))),
    ("llama-bpe llama3 llama-v3 falcon3", PreTokenizer((_LLAMA_3,), whole_words=True, add_bos=True)),
    ("dbrx smaug-bpe chatglm-bpe", PreTokenizer((_LLAMA_3,))),
    ("qwen2 deepseek-r1-qwen stablelm2 megrez", PreTokenizer((_QWEN_2,))),
    ("falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT_2, r"[0-9][0-9][0-9]"))),
    ("default", PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT_2, r"\p{N}+", r"[0-9][0-9][0-9]"))),
    ("tekken", PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True)),
    ("gpt-4o", PreTokenizer((_GPT_4O,))),
    ("deepseek-v3", PreTokenizer((r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK_3))),
    (
        "deepseek-coder",
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    ),
    ("bloom poro-chat gpt3-finnish", PreTokenizer((_BLOOM,))),
    ("viking", PreTokenizer((_BLOOM, r"\p{N}"))),
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: kind for names, kind in _KINDS for name in names.split()}


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """The pre-tokenizer of that name; a file that names none gets `default`.

    BadInputError with the known names for any other: a wrong cut gives wrong ids without an error.
    """
    known = PRE_TOKENIZERS.get(name or "default")
    if known is None:
        raise BadInputError(
            f"The file declares the pre-tokenizer {one_line(repr(name), most_chars=80)}, which HAAW does not "
            f"know. Known are: {', '.join(sorted(PRE_TOKENIZERS))}."
        )
    return known
