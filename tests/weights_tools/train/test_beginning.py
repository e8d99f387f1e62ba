"""Beginning a training with a finished model (`haaw models train-tiny --from`)."""

import hashlib
from dataclasses import replace

import pytest

import haaw
from haaw.errors import HaawError
from tests.weights_tools.train.test_training import SMALL, small_options
from weights_tools.train.checkpoint import CheckpointError, TrainingError
from weights_tools.train.tool import train_tiny

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    return train_tiny(small_options(tmp_path_factory.mktemp("first"), tokens=512 * 4))


def test_the_weights_and_the_tokenizer_of_the_file_are_read_back(first, tokenizer):
    import torch

    from weights_tools.train.beginning import read_beginning
    from weights_tools.train.export import gguf_tensors
    from weights_tools.train.network import Network
    from weights_tools.train.tokenizer import load_tokenizer

    begun = read_beginning(first.model)
    assert begun.sha256 == hashlib.sha256(first.model.read_bytes()).hexdigest()
    assert begun.trained.startswith("0.0 million tokens in 0 minutes")
    network = Network(SMALL.shape)
    begun.fill(network)
    # The file's own tensors are the oracle: writing them again gives the same arrays, and HAAW the same logits.
    from gguf import GGUFReader

    stored = {tensor.name: tensor.data for tensor in GGUFReader(first.model).tensors}
    for name, array in gguf_tensors(network).items():
        assert (array == stored[name]).all(), name
    again = load_tokenizer(begun.tokenizer_model)
    for text in ("Once upon a time there was a girl named Mia.", "7 + 5 = 12.", "é🎈\n x", "<|user|> Hi"):
        assert again.encode(text) == tokenizer.encode(text)
        assert again.decode(again.encode(text)) == text
    ids = [1, *again.encode("Mia went to the park.")]
    with torch.no_grad():
        expected = network(torch.tensor([ids]))[0, -1].argmax()
    assert haaw.load(str(first.model)).generate(ids, max_tokens=1).token_ids[0] == int(expected)


def test_a_training_goes_on_from_the_file_and_its_card_says_so(first, tmp_path):
    options = replace(small_options(tmp_path, tokens=512 * 2), begin_with=first.model)
    second = train_tiny(options)
    assert second.steps == 2
    assert not (tmp_path / "tiny.model").exists()  # no tokenizer was trained
    card = second.card.read_text()
    assert (
        f"began with the weights and the tokenizer of an earlier model (SHA-256 {first_digest(first)[:16]}"
        in card
    )
    assert haaw.load(str(second.model)).tokenizer.encode("Mia") == haaw.load(
        str(first.model)
    ).tokenizer.encode("Mia")
    # Two small steps away from where it began, not from a fresh network.
    from gguf import GGUFReader

    before, after = (GGUFReader(one.model).get_tensor(0).data.astype("f4") for one in (first, second))
    assert 0 < abs(before - after).max() < 0.1 * abs(before).max()


def test_its_checkpoint_belongs_to_the_beginning(first, tmp_path):
    train_tiny(replace(small_options(tmp_path, tokens=512), begin_with=first.model))
    with pytest.raises(CheckpointError, match="another recipe"):
        train_tiny(small_options(tmp_path, tokens=512 * 2))


def test_a_model_of_another_shape_is_refused(first, tmp_path):
    wider = SMALL.with_width(width=96)
    options = replace(small_options(tmp_path, tokens=512), begin_with=first.model, recipe=wider)
    with pytest.raises(TrainingError, match="another shape than the recipe"):
        train_tiny(options)


@pytest.mark.parametrize("content", [None, b"", b"not a model", b"GGUF\x03\x00\x00\x00"])
def test_a_file_that_is_no_model_is_one_clear_error(tmp_path, content):
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TrainingError, match="cannot begin with") as raised:
        train_tiny(replace(small_options(tmp_path / "new", tokens=512), begin_with=path))
    assert "model.gguf" in str(raised.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"tokenizer.ggml.scores": [0.5, 1.5]},
        {"tokenizer.ggml.token_type": ["a", "b"]},
        {"tokenizer.ggml.tokens": [1, 2]},
        {
            "tokenizer.ggml.tokens": ["x", "x"],
            "tokenizer.ggml.scores": [0.0, 0.0],
            "tokenizer.ggml.token_type": [1, 1],
        },
    ],
)
def test_a_vocabulary_that_does_not_add_up_is_one_clear_error(tmp_path, changes):
    from gguf import GGUFWriter

    path = tmp_path / "model.gguf"
    writer = GGUFWriter(str(path), "llama")
    good = {
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a"],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -1.0],
        "tokenizer.ggml.token_type": [2, 3, 3, 1],
    }
    for key, value in (good | changes).items():
        writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(HaawError) as raised:
        train_tiny(replace(small_options(tmp_path / "new", tokens=512), begin_with=path))
    assert "model.gguf" in str(raised.value)
    assert not (tmp_path / "new").exists()


def first_digest(first):
    return hashlib.sha256(first.model.read_bytes()).hexdigest()
