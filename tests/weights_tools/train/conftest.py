"""A small tokenizer and a fresh network, made once for all tests of the training."""

import pytest

from weights_tools.train.recipe import Recipe
from weights_tools.train.tokenizer import load_tokenizer, train_tokenizer


@pytest.fixture(scope="session")
def tokenizer_model():
    return train_tokenizer(pieces=Recipe().shape.vocabulary)


@pytest.fixture(scope="session")
def tokenizer(tokenizer_model):
    return load_tokenizer(tokenizer_model)
