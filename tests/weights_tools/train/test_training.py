import errno
import math
import os
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import haaw
from haaw.errors import BadInputError, HaawError, MissingLibraryError
from weights_tools.train.__main__ import main
from weights_tools.train.asking import Asked, question_pieces
from weights_tools.train.checkpoint import CheckpointError, TrainingError, write_whole
from weights_tools.train.recipe import Recipe
from weights_tools.train.tokenizer import BEGIN_ID
from weights_tools.train.tool import Options, TrainingInterruptedError, train_tiny

oracle = pytest.mark.oracle

SMALL = replace(Recipe(), batch_tokens=512, short_tokens=128, warmup_steps=5).with_width(
    width=64, layers=2, mlp_width=96
)


@pytest.fixture(scope="module")
def network():
    torch = pytest.importorskip("torch")
    from weights_tools.train.network import Network

    torch.manual_seed(1)
    made = Network(SMALL.shape)
    # Sharper than fresh weights, so that the order of heads and positions matters to the logits.
    for name, value in made.named_parameters():
        if name.endswith(("query.weight", "key.weight")):
            value.data *= 4
    return made


@oracle
def test_the_network_gives_the_logits_of_transformers_llama(network):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = SMALL.shape
    config = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.width, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim,
        intermediate_size=shape.mlp_width, rms_norm_eps=shape.eps, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_base}, max_position_embeddings=512,
    )  # fmt: skip
    reference = LlamaForCausalLM(config)
    names = {
        "attention_norm": "input_layernorm", "query": "self_attn.q_proj", "key": "self_attn.k_proj",
        "value": "self_attn.v_proj", "output": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    }  # fmt: skip
    state = {
        "model.embed_tokens.weight": network.embedding.weight,
        "model.norm.weight": network.final_norm.weight,
    }
    for name, value in network.named_parameters():
        if name.startswith("blocks."):
            _, layer, part, _ = name.split(".")
            state[f"model.layers.{layer}.{names[part]}.weight"] = value
    reference.load_state_dict({**state, "lm_head.weight": network.embedding.weight})
    ids = torch.randint(0, shape.vocabulary, (2, 300), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        assert (network(ids) - reference(ids).logits).abs().max() < 1e-4


@oracle
def test_decoding_with_a_cache_gives_the_logits_of_one_pass(network):
    import torch

    from weights_tools.train.looking import Decoder, look

    ids = torch.randint(0, SMALL.shape.vocabulary, (3, 150), generator=torch.Generator().manual_seed(3))
    decoder = Decoder(network)
    steps = torch.stack([decoder.read(ids[:, column]) for column in range(150)], 1)
    with torch.no_grad():
        whole = network(ids)
    assert (steps - whole).abs().max() < 1e-4
    seen, patterns = look(network, ids)
    assert (seen - whole).abs().max() < 1e-4
    assert torch.allclose(patterns[1].sum(-1), torch.ones(3, 4, 150), atol=1e-5)


@oracle
def test_a_head_that_is_switched_off_changes_only_what_follows_it(network):
    import torch

    from weights_tools.train.looking import look

    ids = torch.randint(0, SMALL.shape.vocabulary, (1, 20), generator=torch.Generator().manual_seed(4))
    with_all, _ = look(network, ids)
    for head in ((0, 0), (0, 3), (1, 2)):
        logits, patterns = look(network, ids, without=head)
        assert (logits - with_all).abs().max() > 1e-3
        assert torch.equal(patterns[0], look(network, ids)[1][0])


@oracle
def test_a_muon_step_has_singular_values_near_one():
    import torch

    from weights_tools.train.muon import orthogonalise

    gradient = torch.randn(3, 96, 64, generator=torch.Generator().manual_seed(5))
    values = torch.linalg.svdvals(orthogonalise(gradient))
    # The quintic's fixed band, and bfloat16: between 0.6 and 1.3.
    assert values.min() > 0.6
    assert values.max() < 1.3


@oracle
def test_a_greedy_answer_is_the_one_that_one_pass_predicts(network, tokenizer):
    import torch

    from weights_tools.train.examine import answered_exactly

    rng = random.Random(6)
    prompts = [[BEGIN_ID, *rng.choices(range(300, 1700), k=rng.randint(3, 30))] for _ in range(20)]
    pairs = []
    for number, prompt in enumerate(prompts):
        ids = list(prompt)
        with torch.no_grad():
            for _ in range(4):
                ids.append(int(network(torch.tensor([ids]))[0, -1].argmax()))
        answer = ids[len(prompt) :]
        if number % 2:
            answer[-1] = (answer[-1] + 1) % 1700
        pairs.append((prompt, answer))
    assert answered_exactly(network, pairs) == [number % 2 == 0 for number in range(20)]


@oracle
def test_the_induction_score_of_a_network_that_looks_nowhere_is_small(network):
    from weights_tools.train.interpret import measure_induction

    measured = measure_induction(network, lag=20, rows=3)
    # Uniform attention over 20 to 40 earlier tokens gives each between 1/40 and 1/20.
    assert measured.score_of[measured.best] < 0.3
    assert measured.copied < 0.05


@oracle
def test_a_bound_in_minutes_is_kept(tokenizer):
    from weights_tools.train.training import Budget, Progress, Training

    assert Budget(2).share(Progress(elapsed_s=30)) == 0.25
    assert Budget(2, tokens=100).share(Progress(tokens=150, elapsed_s=0)) == 1.0
    done = Training(SMALL, tokenizer, "digest").run(Budget(0.05), None)
    assert done.step > 0
    # Three seconds, and the step that was under way.
    assert 3.0 <= done.elapsed_s < 20.0


@oracle
def test_an_interrupted_training_goes_on_as_if_nothing_had_happened(tokenizer, tmp_path):
    import torch

    from weights_tools.train.training import Budget, Training

    straight = Training(SMALL, tokenizer, "digest")
    straight.run(Budget(1, tokens=512 * 6), None)
    first = Training(SMALL, tokenizer, "digest")

    def stop(progress, share):
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.run(Budget(1, tokens=512 * 6), tmp_path, stop)
    second = Training(SMALL, tokenizer, "digest")
    assert second.resume(tmp_path)
    assert second.progress.step == 3
    second.run(Budget(1, tokens=512 * 6), tmp_path)
    assert second.progress.step == 6
    for one, other in zip(straight.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(one, other)


@oracle
def test_a_checkpoint_of_another_recipe_or_a_damaged_one_is_refused(tokenizer, tmp_path):
    from weights_tools.train.training import Budget, Training

    Training(SMALL, tokenizer, "one").run(Budget(1, tokens=512), tmp_path)
    with pytest.raises(CheckpointError, match="another recipe"):
        Training(SMALL, tokenizer, "two").resume(tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        Training(SMALL, tokenizer, "one").resume(tmp_path)


def test_a_changed_choice_changes_the_digest():
    recipes = [
        Recipe(),
        replace(Recipe(), seed=8),
        replace(Recipe(), muon_lr=0.5),
        Recipe().with_width(layers=5),
    ]
    assert len({recipe.digest(b"model") for recipe in recipes} | {Recipe().digest(b"other")}) == 5


@oracle
def test_a_full_disk_leaves_the_last_checkpoint_whole(tokenizer, tmp_path, monkeypatch):
    from weights_tools.train.training import Budget, Training

    training = Training(SMALL, tokenizer, "one")
    training.run(Budget(1, tokens=512), tmp_path)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()

    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrainingError, match=r"No space left on device.*nothing was changed"):
        training.run(Budget(1, tokens=1024), tmp_path)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    assert os.listdir(tmp_path) == ["checkpoint.safetensors"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="could not be written"):
        write_whole(tmp_path / "file" / "tiny.gguf", b"")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"minutes": 0.0}, "minutes is 0.0"),
        ({"minutes": math.nan}, "minutes is nan"),
        ({"minutes": -1.0}, "minutes is -1.0"),
        ({"tokens": 0}, "tokens is 0"),
        ({"items": 0}, "At least 1 item"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path, given, said):
    with pytest.raises(BadInputError, match=said):
        train_tiny(Options(folder=tmp_path / "new", **given))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("library", "name"), [("torch", "PyTorch"), ("matplotlib", "Matplotlib")])
def test_a_missing_library_names_the_extra_before_anything_is_done(
    tmp_path, monkeypatch, capsys, library, name
):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingLibraryError, match=rf"needs {name}.*haaw\[train\]"):
        train_tiny(Options(folder=tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    assert main(["--folder", str(tmp_path / "new")]) == 2
    assert "haaw[train]" in capsys.readouterr().err


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("training")
    return train_tiny(small_options(folder, tokens=512 * 12))


def small_options(folder, tokens):
    return Options(
        folder=folder, tokens=tokens, recipe=SMALL, items=4, stories=10, compiled="no", progress="none", threads=1
    )  # fmt: skip


@oracle
def test_training_runs_from_start_to_export(trained):
    assert trained.steps == 12
    assert trained.model.stat().st_size < 6_000_000
    assert trained.plot.read_bytes().startswith(b"\x89PNG")
    card = trained.card.read_text()
    for part in (
        "Apache-2.0",
        "## Data",
        "## Recipe",
        "## Figures",
        "## Limits",
        "## Samples",
        "who has it",
        "\n10. ",
    ):
        assert part in card


@oracle
def test_the_file_holds_the_weights_that_were_examined(trained):
    import numpy as np
    from gguf import GGUFReader

    reader = GGUFReader(trained.model)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == 2 + 9 * SMALL.shape.layers
    assert tensors["token_embd.weight"].data.dtype == np.float16
    assert reader.fields["haaw.prompt"].contents() == "raw"
    assert reader.fields["general.license"].contents() == "apache-2.0"
    assert reader.fields["tokenizer.ggml.add_space_prefix"].contents() is False
    assert reader.fields["llama.attention.key_length"].contents() == 64


@oracle
def test_haaw_gives_the_logits_of_the_training_code(trained, tokenizer):
    import numpy as np
    import torch
    from safetensors.torch import load_file

    from weights_tools.train.export import round_weights
    from weights_tools.train.network import Network

    network = Network(SMALL.shape)
    state = load_file(trained.model.parent / "checkpoint.safetensors")
    network.load_state_dict(
        {n.removeprefix("network."): v for n, v in state.items() if n.startswith("network.")}
    )
    round_weights(network)
    ids = [
        BEGIN_ID,
        *tokenizer.encode("Once upon a time there was a girl named Mia. Mia was in the park. 🎈"),
    ]
    with torch.no_grad():
        expected = network(torch.tensor([ids]))[0].numpy()
    found = logits_of(haaw.load(str(trained.model)), ids)
    assert np.abs(found - expected).max() < 1e-4


def logits_of(model, ids):
    """Run one prefill in HAAW; gives logits, [tokens, vocabulary]."""
    from haaw.caches.dynamic import DynamicCache
    from haaw.models.pack import pack_tokens

    transformer = model.transformer
    cache = DynamicCache(transformer.cache_layout, transformer.prototype_Z)
    return transformer.forward(pack_tokens([(ids, cache)], transformer.prototype_Z), rows="all")


@oracle
@pytest.mark.parametrize("text", ["Once upon a time", " Mia", "Mia, Tom", "Füße 日本 🎈", "a\nb  c"])
def test_haaw_reads_the_tokenizer_back_from_the_file(trained, tokenizer, text):
    model = haaw.load(str(trained.model))
    assert model.tokenizer.encode(text) == tokenizer.encode(text)
    assert model.tokenizer.encode_prompt(text) == [BEGIN_ID, *tokenizer.encode(text)]
    assert model.prompt_form == "raw"


@oracle
def test_the_chat_template_lays_out_turns_as_in_training(trained, tokenizer):
    rendered = haaw.load(str(trained.model)).prepare(
        [{"role": "user", "content": "Who are you?"}], form="chat"
    )
    expected = question_pieces([Asked("Who are you?", "")], "turns")[0][0]
    assert list(rendered.ids) == [BEGIN_ID, *tokenizer.encode(expected)]


@oracle
def test_an_interrupted_run_keeps_finished_files_and_goes_on(trained, tmp_path, monkeypatch):
    from weights_tools.train import training

    for name in ("tiny.model",):
        (tmp_path / name).write_bytes((trained.model.parent / name).read_bytes())
    (tmp_path / "tiny.gguf").write_bytes(b"a good model")
    step = training.Training.step

    def interrupted(self, share):
        if self.progress.step == 2:
            raise KeyboardInterrupt
        return step(self, share)

    monkeypatch.setattr(training.Training, "step", interrupted)
    with pytest.raises(TrainingInterruptedError, match="Stopped at step 2; the same command goes on"):
        train_tiny(small_options(tmp_path, 512 * 4))
    assert (tmp_path / "tiny.gguf").read_bytes() == b"a good model"
    monkeypatch.setattr(training.Training, "step", step)
    assert train_tiny(small_options(tmp_path, 512 * 4)).steps == 4
    assert (tmp_path / "tiny.gguf").read_bytes()[:4] == b"GGUF"


def test_errors_of_training_are_errors_of_haaw():
    assert issubclass(TrainingError, HaawError)


@oracle
def test_the_plain_command_trains_and_names_its_files(trained, tmp_path, monkeypatch, capsys):
    from weights_tools.train import __main__ as command

    monkeypatch.setattr(command, "train_tiny", lambda options: trained)
    assert command.main(["--folder", str(tmp_path), "--minutes", "0.1"]) == 0
    assert [Path(line).name for line in capsys.readouterr().out.split()] == [
        "tiny.gguf",
        "tiny.md",
        "tiny-loss.png",
    ]
