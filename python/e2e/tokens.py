"""A tokenizer for the tiny models: each token is one word, so that a server can read a prompt's text.

Needs tokenizers and transformers, which the engine's own environment has.
"""

from __future__ import annotations

import pathlib

import model


def word(token: int) -> str:
    """The text of a token."""
    return f"w{token}"


def text(tokens: list[int]) -> str:
    """A prompt of exactly these tokens."""
    return " ".join(map(word, tokens))


def ensure(source: pathlib.Path, directory: pathlib.Path) -> pathlib.Path:
    """A model directory with the weights of `source` and a tokenizer, made in `directory`."""
    import tokenizers
    import transformers

    directory.mkdir()
    for file in source.iterdir():
        (directory / file.name).symlink_to(file)
    words = tokenizers.models.WordLevel({word(token): token for token in range(model.VOCABULARY)}, word(0))
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=word(0))
    wrapped.save_pretrained(directory)
    return directory
