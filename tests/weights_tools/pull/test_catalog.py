import pytest

from haaw.errors import BadInputError
from weights_tools.catalog import CATALOG, entry_named


def test_every_entry_has_a_digest_a_licence_and_wheels_of_a_fixed_version():
    for name, entry in CATALOG.items():
        assert name == entry.name == name.lower()
        assert len(bytes.fromhex(entry.sha256)) == 32
        assert entry.licence
        assert "/" not in entry.file_name
        assert entry.file_name.endswith(".gguf")
        for part in entry.parts:
            assert part.requirement == f"{part.distribution}=={part.version}"
            assert part.size_bytes > 0


def test_a_name_is_found_whatever_its_letter_case():
    assert entry_named("SmolLM2-135M").name == "smollm2-135m"


@pytest.mark.parametrize("name", ["smollm2", "smollm2-135", "smolm2-135m"])
def test_a_misspelt_name_is_answered_with_the_nearest_one(name):
    with pytest.raises(BadInputError, match="Did you mean 'smollm2-135m'") as caught:
        entry_named(name)
    assert repr(name) in str(caught.value)


def test_an_unknown_name_is_answered_with_the_known_ones_and_kept_short():
    with pytest.raises(BadInputError, match="Known names: smollm2-135m") as caught:
        entry_named("x" * 10_000)
    assert len(str(caught.value)) < 400
