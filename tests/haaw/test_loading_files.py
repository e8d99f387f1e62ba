"""Hugging Face folders, llama2.c files, GPT-2 in GGUF, and how a name or a path leads to them.

FAULTS: S18 (every end token), S60 to S64 and S69 (heads, shards, headers), S70 (pickles), S42 (RoPE layouts).
"""

import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gguf_models import byte_tokens, tiny_gguf, write_gguf
from support.model_folders import (
    DTYPES,
    LLAMA_CONFIG,
    llama_tensors,
    model_folder,
    sentencepiece_model,
    write_json,
    write_llama2c,
    write_llama2c_tokenizer,
    write_pieces,
)
from support.steps import all_logits

import haaw
from haaw.errors import BadInputError, HaawError
from haaw.loading import find, finding, json_file
from haaw.loading.llama2c import config_from_header

IDS = [1, 2, 250, 3, 3, 77]


def refused(path: Any) -> str:
    """The one sentence with which loading is refused."""
    with pytest.raises(HaawError) as caught:
        haaw.load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert 20 < len(message) < 600
    return message


def logits(path: Any) -> np.ndarray:
    return all_logits(haaw.load(path).transformer, IDS)


def gpt2_config(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 3, "n_inner": 40, "n_positions": 32,
        "vocab_size": 263, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
    } | changes  # fmt: skip


def gpt2_tensors(prefix: str = "") -> dict[str, np.ndarray]:
    """Random GPT-2 weights under Hugging Face names; matrices of layers as (in, out)."""
    rng = np.random.default_rng(5)

    def random(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.3, shape).astype(np.float32)

    tensors = {"wte.weight": random(263, 24), "wpe.weight": random(32, 24)}
    norms = {"ln_f": 24} | {f"h.{n}.{norm}": 24 for n in range(2) for norm in ("ln_1", "ln_2")}
    for name, width in norms.items():
        tensors |= {f"{name}.weight": 1 + random(width), f"{name}.bias": random(width)}
    products = {
        "attn.c_attn": (24, 72),
        "attn.c_proj": (24, 24),
        "mlp.c_fc": (24, 40),
        "mlp.c_proj": (40, 24),
    }
    for number in range(2):
        for name, shape in products.items():
            tensors |= {
                f"h.{number}.{name}.weight": random(*shape),
                f"h.{number}.{name}.bias": random(shape[1]),
            }
    return {prefix + name: tensor for name, tensor in tensors.items()}


# Hugging Face folders.


def test_a_folder_gives_exactly_the_arrays_of_the_gguf_of_the_same_model(tmp_path: Path) -> None:
    """Among them the query and key rows, which the two files hold in different orders (S42)."""
    config = LLAMA_CONFIG | {"tie_word_embeddings": True}
    folder = model_folder(tmp_path / "folder", config, llama_tensors(tied=True))
    from_folder = haaw.load(folder).transformer.named_weights()
    from_gguf = haaw.load(tiny_gguf(tmp_path / "tiny.gguf")).transformer.named_weights()
    assert from_folder.keys() == from_gguf.keys()
    for name, array in from_folder.items():
        np.testing.assert_array_equal(array, from_gguf[name], err_msg=name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_half_precision_and_shards_give_the_rounded_values(dtype: str, shards: int, tmp_path: Path) -> None:
    rounded = {
        name: tensor.astype(DTYPES[dtype]).astype(np.float32) for name, tensor in llama_tensors().items()
    }
    stored = model_folder(tmp_path / "stored", dtype=dtype, shards=shards)
    plain = model_folder(tmp_path / "plain", tensors=rounded)
    np.testing.assert_array_equal(logits(stored), logits(plain))
    assert haaw.load(stored).transformer.cache_layout.dtype == "float32"


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_gpt2_loads_from_a_folder_and_from_gguf_alike(prefix: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "gpt2", gpt2_config(), gpt2_tensors(prefix))
    model = haaw.load(folder)
    assert model.transformer.family == "gpt2"
    assert model.generate("hello", max_tokens=3).finish.reason in ("length", "eos")
    np.testing.assert_array_equal(logits(folder), logits(gpt2_gguf(tmp_path / "gpt2.gguf")))


def gpt2_gguf(path: Path) -> Path:
    """The same model as llama.cpp's converter writes it: matrices turned to (out, in)."""
    names = {
        "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "ln_1": "attn_norm",
        "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down",
    }  # fmt: skip
    tensors = {}
    for name, tensor in gpt2_tensors().items():
        whole, kind = name.rsplit(".", 1)
        block, part = (f"blk.{whole[2]}.", whole[4:]) if whole.startswith("h.") else ("", whole)
        turned = tensor.T if tensor.ndim == 2 and block else tensor
        tensors[f"{block}{names[part]}.{kind}"] = np.ascontiguousarray(turned)
    tokens, kinds = byte_tokens(263)
    metadata = {
        "general.architecture": "gpt2", "gpt2.block_count": 2, "gpt2.embedding_length": 24,
        "gpt2.feed_forward_length": 40, "gpt2.attention.head_count": 3, "gpt2.context_length": 32,
        "gpt2.attention.layer_norm_epsilon": 1e-5, "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["h e"], "tokenizer.ggml.eos_token_id": 256,
    }  # fmt: skip
    return write_gguf(path, metadata, tensors)


def test_every_file_s_end_tokens_count_and_are_stated(tmp_path: Path) -> None:
    """S18: config names 256, generation_config a list with 258, tokenizer_config 257; 300 would be none."""
    folder = model_folder(
        tmp_path / "folder",
        generation_config={"eos_token_id": [256, 258]},
        tokenizer_config={"eos_token": "<|im_start|>"},
    )
    model = haaw.load(folder)
    assert model.tokenizer.eos_ids == {256, 257, 258}
    assert any("<|im_end|>" in note and "258" in note and "257" in note for note in model.notes)
    for end in (256, 257, 258):
        answer = model.generate([1, 2], max_tokens=4, logit_bias={end: 1e6})
        assert (answer.finish.reason, answer.finish.evidence["token_id"]) == ("eos", end)
    write_json(folder / "generation_config.json", {"eos_token_id": 300})
    assert "300" in refused(folder)


def test_a_folder_that_names_no_end_says_so(tmp_path: Path) -> None:
    config = {key: value for key, value in LLAMA_CONFIG.items() if key != "eos_token_id"}
    assert any("no file names" in note for note in haaw.load(model_folder(tmp_path / "f", config)).notes)


TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"


def test_a_chat_template_comes_from_the_config_a_list_in_it_or_a_file_of_its_own(tmp_path: Path) -> None:
    ids = (257, ord("a"), 258)
    model = haaw.load(model_folder(tmp_path / "text", tokenizer_config={"chat_template": TEMPLATE}))
    assert model.prompt_form == "chat"
    assert model.prepare("a").ids == ids
    several = [{"name": "tools", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    assert (
        haaw.load(model_folder(tmp_path / "list", tokenizer_config={"chat_template": several}))
        .prepare("a")
        .ids
        == ids
    )
    folder = model_folder(tmp_path / "file", tokenizer_config={"chat_template": "x"})
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    assert haaw.load(folder).prepare("a").ids == ids
    assert haaw.load(model_folder(tmp_path / "none")).prompt_form == "raw"


def test_a_sentencepiece_model_is_used_where_there_is_no_tokenizer_json(tmp_path: Path) -> None:
    import sentencepiece

    content = sentencepiece_model()
    library = sentencepiece.SentencePieceProcessor(model_proto=content)
    size = library.get_piece_size()
    tensors = llama_tensors()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = np.resize(tensors[name], (size, 24))
    folder = model_folder(
        tmp_path / "folder", LLAMA_CONFIG | {"vocab_size": size, "eos_token_id": 2}, tensors
    )
    (folder / "tokenizer.json").unlink()
    assert "tokenizer" in refused(folder)
    (folder / "tokenizer.model").write_bytes(content)
    text = "the cat sat at tea, né"
    assert list(haaw.load(folder).prepare(text).ids) == [library.bos_id(), *library.encode(text)]
    (folder / "tokenizer.model").write_bytes(b"\x80\x04 nonsense")
    refused(folder)


# Output tables, S60 and S61.

HEADS: dict[str, tuple[dict[str, Any], Callable[[], dict[str, np.ndarray]], str]] = {
    "llama": (LLAMA_CONFIG, llama_tensors, "model.embed_tokens.weight"),
    "gpt2": (gpt2_config(), lambda: gpt2_tensors("transformer."), "transformer.wte.weight"),
}


@pytest.mark.parametrize(("config", "make", "table"), HEADS.values(), ids=HEADS.keys())
def test_the_head_that_the_file_holds_is_the_head_that_is_used(
    config: dict[str, Any], make: Callable, table: str, tmp_path: Path
) -> None:
    own = np.random.default_rng(1).normal(size=(263, 24)).astype(np.float32)
    tied, untied = config | {"tie_word_embeddings": True}, config | {"tie_word_embeddings": False}
    without = {name: tensor for name, tensor in make().items() if name != "lm_head.weight"}

    def load(config: dict[str, Any], head: np.ndarray | None = None) -> Any:
        tensors = without if head is None else without | {"lm_head.weight": head}
        return haaw.load(model_folder(tmp_path / "folder", config, tensors))

    absent = load(tied)
    assert "output" not in absent.transformer.named_weights()
    assert absent.transformer.weights.output_VD is absent.transformer.weights.embedding_VD
    same = load(tied, head=without[table])
    assert same.transformer.weights.output_VD is same.transformer.weights.embedding_VD
    assert same.notes == absent.notes
    different = load(tied, head=own)
    np.testing.assert_array_equal(different.transformer.named_weights()["output"], own)
    assert any("output table" in note for note in different.notes)
    separate = load(untied, head=own)
    np.testing.assert_array_equal(separate.transformer.named_weights()["output"], own)
    assert separate.notes == absent.notes
    model_folder(tmp_path / "bad", untied, without)
    assert "lm_head.weight" in refused(tmp_path / "bad")


# What a folder must not be.


def spoilt_config(**changes: Any) -> Callable[[Path], Any]:
    return lambda folder: write_json(folder / "config.json", LLAMA_CONFIG | changes)


def config_text(text: str | bytes) -> Callable[[Path], Any]:
    content = text if isinstance(text, bytes) else text.encode()
    return lambda folder: (folder / "config.json").write_bytes(content)


def pipe(name: str) -> Callable[[Path], Any]:
    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return make


FOLDERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "an unknown architecture": (spoilt_config(model_type="mamba"), "mamba"),
    "no architecture": (spoilt_config(model_type=None), "model_type"),
    "an architecture that is a list": (spoilt_config(model_type=["llama"]), "model_type"),
    "an unknown key": (spoilt_config(quantization_config={"bits": 4}), "quantization_config"),
    "a key that is misspelt": (spoilt_config(rms_norm_epsilon=1e-5), "rms_norm_epsilon"),
    "biases": (spoilt_config(attention_bias=True), "attention_bias"),
    "a scaling that is not known": (spoilt_config(rope_scaling={"type": "yarn", "factor": 2.0}), "yarn"),
    "a wrong width": (spoilt_config(hidden_size=32), "shape"),
    "a vocabulary of 2**31 - 1": (spoilt_config(vocab_size=2**31 - 1), "embed_tokens"),
    "too many layers": (spoilt_config(num_hidden_layers=2**31 - 1), "layers.2"),
    "too few layers": (spoilt_config(num_hidden_layers=1), "layers.1"),
    "a number that is a text": (spoilt_config(hidden_size="24"), "hidden_size"),
    "a name twice": (config_text('{"model_type": "llama", "model_type": "gpt2"}'), "twice"),
    "NaN": (config_text('{"model_type": "llama", "rms_norm_eps": NaN}'), "NaN"),
    "Infinity": (config_text('{"model_type": "llama", "rope_theta": -Infinity}'), "Infinity"),
    "an overflowing number": (spoilt_config(rope_theta=10**400), "rope_theta"),
    "deep nesting": (config_text('{"a":' * 100_000), "nested"),
    "a list": (config_text("[1, 2]"), "object"),
    "half a JSON": (config_text('{"model_type": "ll'), "JSON"),
    "nothing": (config_text(""), "JSON"),
    "Latin-1": (config_text('{"model_type": "é"}'.encode("latin-1")), "UTF-8"),
    "UTF-16": (config_text('{"model_type": "llama"}'.encode("utf-16")), "UTF-8"),
    "a config that is a pipe": (pipe("config.json"), "regular file"),
    "a tokenizer that is a pipe": (pipe("tokenizer.json"), "regular file"),
    "weights that are a pipe": (pipe("model.safetensors"), "regular file"),
    "a config that is a folder": (
        lambda folder: ((folder / "config.json").unlink(), (folder / "config.json").mkdir()),
        "regular file",
    ),
    "a tokenizer that is none": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer"),
    "a tokenizer config that is none": (
        lambda folder: (folder / "tokenizer_config.json").write_text("[]"),
        "tokenizer_config.json",
    ),
    "a generation config with a name twice": (
        lambda folder: (folder / "generation_config.json").write_text('{"a": 1, "a": 2}'),
        "generation_config.json",
    ),
    "a template that is not UTF-8": (
        lambda folder: (folder / "chat_template.jinja").write_bytes(b"\xff"),
        "chat_template.jinja",
    ),
    "weights cut short": (
        lambda folder: os.truncate(folder / "model.safetensors", 5000),
        "model.safetensors",
    ),
}


@pytest.mark.parametrize(("spoil", "says"), FOLDERS.values(), ids=FOLDERS.keys())
def test_a_folder_that_is_no_sound_model_is_refused_by_name(
    spoil: Callable, says: str, tmp_path: Path
) -> None:
    folder = model_folder(tmp_path / "folder")
    haaw.load(folder)  # sound to begin with
    spoil(folder)
    assert says in refused(folder)


def test_a_config_of_absurd_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "folder")
    with open(folder / "config.json", "r+b") as file:
        file.truncate(json_file.LARGEST_JSON_BYTES + 1)
    assert str(json_file.LARGEST_JSON_BYTES) in refused(folder)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    tensors = {n: t[:200] if t.shape[0] == 263 else t for n, t in llama_tensors().items()}
    folder = model_folder(tmp_path / "folder", LLAMA_CONFIG | {"vocab_size": 200, "eos_token_id": 1}, tensors)
    message = refused(folder)
    assert "263 tokens" in message
    assert "200" in message


def edit_index(change: Callable[[dict[str, str]], Any]) -> Callable[[Path], Any]:
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        change(index["weight_map"])
        write_json(path, index)

    return edit


def lying_header(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], Any]:
    def edit(folder: Path) -> None:
        path = folder / "model-00002-of-00003.safetensors"
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])

    return edit


def overlap(header: dict[str, Any]) -> None:
    first, second = list(header.values())[:2]
    second["data_offsets"] = first["data_offsets"]
    second["shape"], second["dtype"] = first["shape"], first["dtype"]


def too_large(header: dict[str, Any]) -> None:
    next(iter(header.values()))["shape"] = [1000, 1000]


SHARDS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a missing shard": (
        lambda folder: (folder / "model-00002-of-00003.safetensors").unlink(),
        "model-00002-of-00003.safetensors",
    ),
    "a tensor mapped to the wrong shard": (
        edit_index(lambda where: where.update({"model.norm.weight": "model-00001-of-00003.safetensors"})),
        "model.norm.weight",
    ),
    "a tensor that the index forgot": (
        edit_index(lambda where: where.pop("model.norm.weight")),
        "model.norm",
    ),
    "a tensor that no shard has": (
        edit_index(lambda where: where.update({"more": "model-00001-of-00003.safetensors"})),
        "more",
    ),
    "a shard outside the folder": (
        edit_index(lambda where: where.update({"model.norm.weight": "../../secret.safetensors"})),
        "secret",
    ),
    "overlapping tensors": (lying_header(overlap), "overlap"),
    "a shape beyond the data": (lying_header(too_large), "model-00002-of-00003.safetensors"),
    "an index that is none": (
        lambda folder: (folder / "model.safetensors.index.json").write_text("{}"),
        "weight_map",
    ),
}


@pytest.mark.parametrize(("spoil", "says"), SHARDS.values(), ids=SHARDS.keys())
def test_shards_that_do_not_add_up_are_refused_by_name(spoil: Callable, says: str, tmp_path: Path) -> None:
    """S62 and S63."""
    folder = model_folder(tmp_path / "folder", shards=3)
    haaw.load(folder)
    spoil(folder)
    assert says in refused(folder)


def test_files_that_are_links_to_elsewhere_are_followed(tmp_path: Path) -> None:
    """The Hub's own cache looks like that: each file is a link into a store of blobs."""
    real = model_folder(tmp_path / "blobs")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for file in real.iterdir():
        (folder / file.name).symlink_to(file)
    np.testing.assert_array_equal(logits(folder), logits(real))


# Pickles, S70.


class Trap:
    """Unpickling this makes the marker file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("kind", ["plain pickle", "torch archive"])
@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "pytorch_model.bin",
        "model.bin",
        "tok263.bin",
        "x.safetensors",
        "model.gguf",
        "x.pt",
    ],
)
def test_a_pickle_is_never_unpickled_whatever_it_is_called(kind: str, name: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    poison = pickle.dumps(Trap(marker))
    pickle.loads(poison)
    assert marker.exists()  # the trap works
    marker.rmdir()
    folder = tmp_path / "model"
    folder.mkdir()
    model_folder(folder)
    (folder / "model.safetensors").unlink()
    if name.startswith("tok"):
        write_llama2c(folder / "model.bin", llama2c_tensors())
    if kind == "plain pickle":
        (folder / name).write_bytes(poison)
    else:
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("archive/data.pkl", poison)
    for path in (folder, folder / name, folder / "model.bin"):
        message = refused(path)
    assert not marker.exists()
    if name.startswith(("model", "pytorch")):
        assert "pickle" in refused(folder)
    assert message


# llama2.c.


def llama2c_tensors() -> dict[str, np.ndarray]:
    tensors = llama_tensors(tied=True)
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def test_stories260k_from_bos_tells_its_story_character_for_character(golden: Path) -> None:
    """The published text ends with the 255th token: `run.c` takes 256 steps, of which BOS is the first.

    The golden file begins with a line that the program which made it printed about the tokenizer.
    """
    model = haaw.load(golden / "stories260k" / "stories260K.bin")
    written = (golden / "stories260k" / "greedy.txt").read_text(encoding="utf-8")
    story = written.partition("\n")[2] if written.startswith("tok bytes left") else written
    answer = model.generate("", max_tokens=255)
    assert answer.prompt_ids == (1,)
    assert answer.text == story
    assert model.transformer.context_length_tokens == 512
    assert model.generate("", max_tokens=255, heads="separate").text == story


@pytest.mark.parametrize("output", ["tied", "separate"])
def test_a_llama2c_file_gives_exactly_the_arrays_of_the_folder(output: str, tmp_path: Path) -> None:
    """Interleaved RoPE rows (S42), and the sign of the vocabulary's size as the flag of a separate head (S69)."""
    tensors = llama_tensors(tied=output == "tied")
    path = write_llama2c(tmp_path / "model.bin", tensors, output=output)
    write_llama2c_tokenizer(tmp_path / "tok263.bin")
    model = haaw.load(path)
    config = LLAMA_CONFIG | {"tie_word_embeddings": output == "tied"}
    expected = haaw.load(model_folder(tmp_path / "folder", config, tensors)).transformer.named_weights()
    found = model.transformer.named_weights()
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    assert (model.prompt_form, model.template) == ("raw", None)
    assert model.prepare("").ids == (1,)


def test_what_run_c_fixes_is_in_the_config() -> None:
    header = {"dim": 64, "hidden_dim": 172, "n_layers": 5, "n_heads": 8, "n_kv_heads": 4, "vocab_size": 512,
              "seq_len": 512, "output": "tied"}  # fmt: skip
    config = config_from_header(header)
    assert (config.eps, config.rope_base, config.rope_scaling) == (1e-5, 10_000.0, None)
    assert (config.head_dim, config.query_heads, config.kv_heads, config.tied) == (8, 8, 4, True)


def test_the_tokenizer_is_found_by_its_name_or_its_size(tmp_path: Path) -> None:
    path = write_llama2c(tmp_path / "model.bin", llama2c_tensors())
    assert "tok*.bin with 263 tokens" in refused(path)
    write_llama2c_tokenizer(tmp_path / "tok300.bin", 300)
    assert "tok300.bin is not it" in refused(path)
    write_llama2c_tokenizer(tmp_path / "tokenizer.bin")
    assert haaw.load(path).tokenizer.vocabulary_size == 263
    write_llama2c_tokenizer(tmp_path / "tok-other.bin")
    assert "rename" in refused(path)
    write_llama2c_tokenizer(tmp_path / "tok263.bin")
    assert haaw.load(path).tokenizer.vocabulary_size == 263
    write_llama2c_tokenizer(tmp_path / "tok263.bin", 262)
    assert "262" in refused(path)
    write_pieces(tmp_path / "tok263.bin", [b"\xff"] * 263)
    refused(path)


def test_a_llama2c_file_of_another_length_is_refused_with_both_lengths(tmp_path: Path) -> None:
    path = write_llama2c(tmp_path / "model.bin", llama2c_tensors())
    write_llama2c_tokenizer(tmp_path / "tok263.bin")
    size = path.stat().st_size
    os.truncate(path, size - 4)
    message = refused(path)
    assert str(size) in message
    assert str(size - 4) in message


# Names and places.


def test_a_folder_with_just_one_gguf_stands_for_it(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    write_json(tmp_path / "config.json", {"model_type": "who knows"})  # the Hub's GGUF repositories carry one
    assert find(tmp_path) == path
    assert haaw.load(tmp_path).prompt_form == "raw"
    tiny_gguf(tmp_path / "another.gguf")
    assert "another.gguf, tiny.gguf" in refused(tmp_path)


def test_a_gguf_is_one_whatever_its_name_ends_in(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    for name in ("tiny.bin", "blob", "tiny.gguf.part"):
        path = path.rename(tmp_path / name)
        assert haaw.load(path).transformer.vocabulary_size == 263


def test_a_single_weights_file_of_a_folder_leads_to_the_folder(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "folder")
    assert "name its folder" in refused(folder / "model.safetensors")


def test_a_pulled_hub_model_is_found_by_its_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAAW_CACHE", str(tmp_path))
    assert "haaw models pull hf:someone/model" in refused("hf:someone/model")
    folder = model_folder(tmp_path / "hub" / "someone" / "model")
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    write_json(folder / ".haaw-pull.json", {"size_bytes_by_file": sizes})
    assert find("hf:someone/model") == folder
    assert haaw.load("hf:someone/model").name == "hf:someone/model"
    assert "hf:OWNER/NAME" in refused("hf:../../etc")


def test_the_built_in_model_is_the_packaged_file_once_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "files", lambda package: tmp_path)
    assert "the built-in model is missing" in refused("tiny")
    (tmp_path / "data").mkdir()
    path = tiny_gguf(tmp_path / "data" / "tiny.gguf")
    assert find("tiny") == path
    assert haaw.load().transformer.vocabulary_size == 263


def test_a_known_name_goes_before_a_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HAAW_CACHE", str(tmp_path / "cache"))
    tiny_gguf(tmp_path / "smollm2-135m")
    assert "haaw models pull" in refused("smollm2-135m")
    assert haaw.load("./smollm2-135m").transformer.vocabulary_size == 263


def test_loading_brings_in_no_framework(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "folder", dtype="bfloat16")
    program = (
        "import sys, haaw; early = set(sys.modules); haaw.load(sys.argv[1]); "
        "names = {name.partition('.')[0] for name in sys.modules}; "
        "print(sorted(names & {'torch', 'transformers', 'huggingface_hub', 'tensorflow', 'jax'})); "
        "print(sorted({name.partition('.')[0] for name in early} & {'tokenizers', 'safetensors', 'gguf', 'jinja2'}))"
    )
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]


# Against transformers.


@pytest.mark.oracle
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_transformers_saves_loads_with_its_logits(
    family: str, dtype: str, seed: int, tmp_path: Path
) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(seed)
    if family == "llama":
        config = transformers.LlamaConfig(
            vocab_size=263, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, initializer_range=0.3, bos_token_id=None, eos_token_id=256,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.GPT2Config(
            vocab_size=263, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3,
            bos_token_id=256, eos_token_id=256,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
    model = model.to(getattr(torch, dtype)).eval()
    folder = model_folder(tmp_path / "folder")
    for old in folder.glob("*.safetensors"):
        old.unlink()
    model.save_pretrained(folder, max_shard_size="30KB")
    assert (folder / "model.safetensors.index.json").exists()
    # Read back: casting the model to bfloat16 had rounded its RoPE frequencies too, which no file holds.
    model = type(model).from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.tensor([IDS])).logits[0].numpy()
    np.testing.assert_allclose(logits(folder), expected, atol=1e-4, rtol=0)


def test_refusals_are_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInputError):
        haaw.load(tmp_path)
