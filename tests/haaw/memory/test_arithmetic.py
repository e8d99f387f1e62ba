"""Bytes of a KV cache, held against an independent formula and against cases worked out by hand."""

import math
from fractions import Fraction

import pytest

from haaw.errors import BadInputError
from haaw.memory import KINDS, PRESETS, CacheShape, Plan, bytes_per_token, kind_memory, needed_bytes
from haaw.memory.arithmetic import doubled
from haaw.memory.sizes import parse_size, size_text

GIB = 2**30


def test_the_reference_case():
    plan = Plan(CacheShape(32, 8, 128, 2), context=8192, sequences=2)
    assert plan.per_token.value == 131_072
    assert plan.per_sequence.value == GIB
    assert plan.cache_bytes.value == 2 * GIB
    assert plan.per_token.text == "2 · 32 · 8 · 128 · 2 = 131,072"


BY_HAND = {
    # Published: DeepSeek-V3's report on hardware (arXiv:2505.09343), table 1, in thousands of bytes, 16-bit floats.
    "deepseek-v3": 70_272,  # 61 · (512 + 64) · 2
    "llama-3.1-405b": 516_096,  # 126 · 2 · 8 · 128 · 2
    # From their configs.
    "llama-3.1-8b": 131_072,  # 32 · 2 · 8 · 128 · 2
    "mistral-7b-v0.1": 131_072,  # 32 · 2 · 8 · 128 · 2
    "gemma-3-27b": 507_904,  # 62 · 2 · 16 · 128 · 2
    "gpt2": 73_728,  # 12 · 2 · 12 · 64 · 4
    "smollm2-135m": 23_040,  # 30 · 2 · 3 · 64 · 2
}


@pytest.mark.parametrize(("name", "token_bytes"), BY_HAND.items())
def test_a_token_of_a_real_model(name, token_bytes):
    assert bytes_per_token(PRESETS[name].shape).value == token_bytes


def test_models_of_two_papers_that_are_no_presets():
    # OPT-13B: 40 layers, width 5120, float16: 800 KB a token (Kwon et al. 2023, arXiv:2309.06180, section 3).
    assert bytes_per_token(CacheShape(40, 40, 128, 2)).value == 819_200
    # Qwen2.5-72B: 80 layers, 8 KV heads of 128: 327.680 KB a token (arXiv:2505.09343, table 1).
    assert bytes_per_token(CacheShape(80, 8, 128, 2)).value == 327_680


def test_a_window_bounds_what_a_sequence_needs():
    # Mistral-7B-v0.1 at 32,768 positions: 32 layers · 4,096 positions · 2 · 8 · 128 · 2 bytes = half a GiB, not 4.
    assert needed_bytes(PRESETS["mistral-7b-v0.1"].shape, 32_768).value == GIB // 2
    assert needed_bytes(PRESETS["mistral-7b-v0.1"].shape, 100).value == 100 * 131_072


def test_layers_with_a_window_beside_layers_without():
    shape = PRESETS["gemma-3-27b"].shape
    # Of 62 layers numbers 6, 12, …, 60 are without a window: 10; the other 52 look 1,024 positions back.
    assert (shape.full_layers, shape.windowed_layers) == (10, 52)
    # A layer and position: 2 · 16 · 128 · 2 = 8,192 bytes. 10 · 131,072 + 52 · 1,024 = 1,363,968 of them.
    assert needed_bytes(shape, 131_072).value == 1_363_968 * 8_192


PARAMETERS = {
    # layers, width, query heads, KV heads, head width, MLP width, vocabulary, tied
    "llama-3.1-8b": (32, 4096, 32, 8, 128, 14_336, 128_256, False),
    "mistral-7b-v0.1": (32, 4096, 32, 8, 128, 14_336, 32_000, False),
    "llama-3.1-405b": (126, 16_384, 128, 8, 128, 53_248, 128_256, False),
    "smollm2-135m": (30, 576, 9, 3, 64, 1536, 49_152, True),
}


@pytest.mark.parametrize(("name", "sizes"), PARAMETERS.items())
def test_the_weights_of_a_preset_are_the_sum_of_its_matrices(name, sizes):
    layers, width, heads, kv_heads, head, mlp, vocabulary, tied = sizes
    a_layer = 2 * width * heads * head + 2 * width * kv_heads * head + 3 * width * mlp + 2 * width
    total = layers * a_layer + vocabulary * width * (1 if tied else 2) + width
    assert PRESETS[name].parameters == total
    assert PRESETS[name].weights_bytes == 2 * total


def plain_needed(setting, context):
    """What a sequence needs, added up position by position and layer by layer."""
    total = Fraction(0)
    for layer in range(setting["layers"]):
        letter = setting["pattern"][layer % len(setting["pattern"])]
        elements = (
            setting["latent"] + setting["rope"]
            if setting["latent"]
            else 2 * setting["heads"] * setting["head"]
        )
        held = {"f": context, "w": min(context, setting["window"]), "-": 0}[letter]
        total += held * elements * Fraction(setting["element"])
    return -(-total.numerator // total.denominator)


def random_setting(rng):
    letters = "".join(rng.choice(["f", "w", "-"], size=rng.integers(1, 8), p=[0.4, 0.4, 0.2]))
    latent = int(rng.choice([0, 0, 0, 512, 100]))
    return {
        "layers": int(rng.integers(1, 130)),
        "heads": int(rng.integers(1, 65)),
        "head": int(rng.choice([1, 7, 64, 80, 128, 256])),
        "element": float(rng.choice([4, 2, 1, 0.5, 0.5625, 1.0625, 8])),
        "window": int(rng.integers(1, 9000)),
        "pattern": letters.replace("-", "w") if set(letters[:1]) == {"-"} else letters,
        "latent": latent,
        "rope": int(rng.choice([0, 64])) if latent else 0,
    }


def shape_of(setting, **more):
    pattern = setting["pattern"]
    return CacheShape(
        setting["layers"], setting["heads"], setting["head"], setting["element"],
        window=setting["window"] if "w" in pattern else None, pattern=pattern,
        latent_width=setting["latent"], rope_width=setting["rope"], **more,
    )  # fmt: skip


def test_500_random_settings_equal_a_sum_over_layers(rng):
    for _ in range(500):
        setting, context = random_setting(rng), int(rng.integers(1, 50_000))
        sequences, weights = int(rng.integers(1, 100)), int(rng.integers(0, 10**12))
        plan = Plan(shape_of(setting), context, sequences, weights_bytes=weights)
        one = plain_needed(setting, context)
        assert plan.per_sequence.value == one, setting
        assert plan.total_bytes.value == sequences * one + weights
        everywhere = {**setting, "pattern": setting["pattern"].replace("w", "f")}
        assert math.ceil(plan.per_token.value) == plain_needed(everywhere, 1)


@pytest.mark.parametrize("kind", ["needed", *KINDS])
def test_the_largest_context_fits_and_one_more_does_not(kind, rng):
    for _ in range(25):
        setting = random_setting(rng) | {"latent": 0, "rope": 0}
        memory, weights, sequences = (
            int(rng.integers(1, 80 * GIB)),
            int(rng.integers(0, 20 * GIB)),
            int(rng.integers(1, 9)),
        )
        plan = Plan(shape_of(setting), 100, sequences, kind, weights_bytes=weights, memory_bytes=memory)
        most = plan.largest_context().value
        assert sequences * plan.allocated_bytes(most, reserve=False) <= memory - weights or most == 0
        if most < 2**31 - 1:
            assert sequences * plan.allocated_bytes(most + 1, reserve=False) > memory - weights


@pytest.mark.parametrize("kind", ["needed", *KINDS])
def test_the_most_sequences_fit_and_one_more_does_not(kind):
    plan = Plan(CacheShape(32, 8, 128, 2), 5000, 1, kind, weights_bytes=16 * GIB, memory_bytes=24 * GIB)
    most, one = plan.most_sequences().value, plan.allocated_bytes(5000)
    assert most * one <= 8 * GIB < (most + 1) * one


def test_nothing_fits_beside_weights_that_are_too_large():
    plan = Plan(CacheShape(2, 2, 8, 2), 10, weights_bytes=GIB, memory_bytes=GIB - 1)
    assert (plan.largest_context().value, plan.most_sequences().value) == (0, 0)


def test_useful_against_allocated_by_hand():
    shape = CacheShape(2, 2, 8, 2, block_size=16)  # 2 · 2 · 2 · 8 · 2 = 128 bytes a token
    dynamic = kind_memory(shape, "dynamic", 70)  # 64 are too few, so 128 rows
    assert (dynamic.useful_bytes, dynamic.allocated_bytes, dynamic.waste_bytes) == (8960, 16_384, 7424)
    static = kind_memory(shape, "static", 70, capacity=100)
    assert (static.useful_bytes, static.allocated_bytes) == (8960, 12_800)
    paged = kind_memory(shape, "paged", 70)  # 5 blocks of 16, whose table has 5 entries of 8 bytes
    assert (paged.useful_bytes, paged.allocated_bytes, paged.metadata_bytes) == (8960, 10_240, 40)
    assert paged.total_bytes == 10_280
    assert paged.waste_bytes == 10 * 128


def test_what_is_offloaded_needs_memory_for_two_layers_alone():
    shape = CacheShape(32, 8, 128, 2)  # a layer and position: 2 · 8 · 128 · 2 = 4,096 bytes
    part = kind_memory(shape, "offloaded", 8192)
    # 32 layers outside and 2 in memory, 8,192 · 4,096 bytes (32 MiB) each: 1 GiB and 64 MiB.
    assert (part.useful_bytes, part.outside_bytes, part.resident_bytes) == (GIB, GIB, 2**26)
    assert part.allocated_bytes == GIB + 2**26
    plan = Plan(shape, 8192, 3, "offloaded", weights_bytes=GIB, memory_bytes=GIB + 3 * 2**27)
    assert plan.cache_bytes.value == 3 * 2**26
    assert plan.largest_context().value == 16_384  # 128 MiB for each sequence, twice as many
    assert kind_memory(CacheShape(1, 8, 128, 2), "offloaded", 64).resident_bytes == 64 * 4096


def test_doubling_reaches_the_next_capacity():
    assert [doubled(count) for count in (0, 1, 64, 65, 128, 129, 8192, 8193)] == [
        0,
        64,
        64,
        128,
        128,
        256,
        8192,
        16_384,
    ]


def test_fractions_of_a_byte_are_rounded_up_once_for_the_whole():
    shape = CacheShape(1, 1, 1, 0.5625)  # 1.125 bytes a token
    assert bytes_per_token(shape).value == Fraction(9, 8)
    assert needed_bytes(shape, 7).value == 8  # 7.875
    assert bytes_per_token(shape).text == "2 · 1 · 1 · 1 · 0.5625 = 1.125"


BAD = {
    "no heads": ({"kv_heads": 0}, "kv_heads is 0"),
    "negative layers": ({"layers": -3}, "layers is -3"),
    "absurd width": ({"head_dim": 10**9}, "head_dim is 1000000000"),
    "a truth value": ({"layers": True}, "layers is True"),
    "half a layer": ({"layers": 1.5}, "layers is 1.5"),
    "no bytes": ({"bytes_per_element": 0}, "bytes_per_element is 0"),
    "negative bytes": ({"bytes_per_element": -2}, "bytes_per_element is -2"),
    "no number": ({"bytes_per_element": float("nan")}, "bytes_per_element is nan"),
    "no fraction": ({"bytes_per_element": 0.1}, "multiple of 1/32"),
    "a window of nothing": ({"window": 0}, "window is 0"),
    "a pattern without a window": ({"pattern": "wf"}, "no window is given"),
    "a window without its layers": ({"window": 5, "pattern": "ff"}, "no layer that uses it"),
    "a strange letter": ({"pattern": "fx"}, "the letter 'x'"),
    "no layer at all": ({"pattern": "-"}, "leaves no layer"),
    "a rotated width alone": ({"rope_width": 64}, "without a latent_width"),
    "a block of nothing": ({"block_size": 0}, "block_size is 0"),
}


@pytest.mark.parametrize(("changes", "says"), BAD.values(), ids=BAD.keys())
def test_numbers_that_no_model_has_are_refused_by_name(changes, says):
    with pytest.raises(BadInputError, match=says):
        CacheShape(**({"layers": 2, "kv_heads": 2, "head_dim": 8} | changes))


BAD_PLANS = {
    "no context": ({"context": 0}, "context is 0"),
    "an endless context": ({"context": 2**40}, "context is 1099511627776"),
    "no sequences": ({"sequences": 0}, "sequences is 0"),
    "an unknown kind": ({"kind": "magic"}, "cache is 'magic'"),
    "a capacity that is too small": ({"capacity": 50, "context": 60}, "beyond the capacity"),
    "negative weights": ({"weights_bytes": -1}, "weights_bytes is -1"),
}


@pytest.mark.parametrize(("changes", "says"), BAD_PLANS.values(), ids=BAD_PLANS.keys())
def test_a_plan_that_cannot_be_is_refused_by_name(changes, says):
    with pytest.raises(BadInputError, match=says):
        Plan(CacheShape(2, 2, 8), **changes)


def test_a_total_beyond_all_memory_is_refused():
    with pytest.raises(BadInputError, match="256 TiB"):
        Plan(CacheShape(10_000, 10_000, 65_536), 2**31 - 1).figures()


def test_latents_have_no_cache_of_few_bits():
    shape = CacheShape(2, 1, 1, latent_width=8)
    assert "int8" not in [part.kind for part in Plan(shape, 10).kinds()]
    with pytest.raises(BadInputError, match="not defined for latents"):
        Plan(shape, 10, kind="int8")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * GIB),
        ("1.5 GB", 1_500_000_000),
        ("800mb", 800_000_000),
        ("77", 77),
        ("1 KiB", 1024),
        ("3B", 3),
    ],
)
def test_sizes_as_people_write_them(text, size):
    assert parse_size(text, "--memory") == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "24G", "-1GB", "1e9", "0", "1 EiB", "257TiB", "nan", "24 GiB more", "9" * 50]
)
def test_sizes_that_mean_nothing_are_refused(text):
    with pytest.raises(BadInputError, match="--memory is"):
        parse_size(text, "--memory")


def test_sizes_as_people_read_them():
    sizes = [0, 1023, 1024, 10_188, 10_240, 102_348, 1_023_487, 1_023_488, GIB, 5 * 2**50]
    assert [size_text(size) for size in sizes] == [
        "0 bytes", "1,023 bytes", "1.00 KiB", "9.95 KiB", "10.0 KiB", "99.9 KiB", "999 KiB", "0.98 MiB", "1.00 GiB",
        "5.00 PiB",
    ]  # fmt: skip
