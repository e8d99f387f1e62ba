"""Text to token ids and back: byte-level BPE, SentencePiece, chat templates, incremental detokenising.

Receives plain metadata, texts and bytes; imports nothing of HAAW but its errors. The libraries that it builds
on are imported at their first use.
"""

from haaw.tokenizers.byte_level import ByteLevelTokenizer
from haaw.tokenizers.chat_markup import MessageSpan
from haaw.tokenizers.chat_template import ChatPrompt, ChatTemplate
from haaw.tokenizers.detokenizer import BytesDetokenizer
from haaw.tokenizers.factory import (
    chat_template_from_config,
    chat_template_from_gguf,
    tokenizer_from_files,
    tokenizer_from_folder,
    tokenizer_from_gguf,
)
from haaw.tokenizers.protocol import Detokenizer, TextPart, Tokenizer, TokenSpan
from haaw.tokenizers.sentencepiece_model import SentencePieceTokenizer
from haaw.tokenizers.tokenizer_json import JsonTokenizer
from haaw.tokenizers.vocabulary import end_ids

__all__ = [
    "ByteLevelTokenizer",
    "BytesDetokenizer",
    "ChatPrompt",
    "ChatTemplate",
    "Detokenizer",
    "JsonTokenizer",
    "MessageSpan",
    "SentencePieceTokenizer",
    "TextPart",
    "TokenSpan",
    "Tokenizer",
    "chat_template_from_config",
    "chat_template_from_gguf",
    "end_ids",
    "tokenizer_from_files",
    "tokenizer_from_folder",
    "tokenizer_from_gguf",
]
