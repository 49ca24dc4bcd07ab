"""Random weights that mean something.

An engine's own dummy weights are so close to zero that attention contributes nothing: output then does not
depend on the cached bytes, and a cache that returned garbage would pass every comparison. The weights made
here are the architecture's usual random initialisation with its matrices scaled up, until the context decides
the next token. That this worked is checked by the negative control of the test suite, which corrupts the stored bytes and
expects other output.

Needs torch and transformers (the engine's own environment has both). The result is cached in a directory
whose name carries a hash of everything that decides it.

    python weights.py --cache DIR MODEL...        prints one model directory a line
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import shutil
import tempfile

import models

# Raise when the recipe below changes, so that cached weights of an older recipe are not used.
RECIPE = 1
SEED = 20250

# Scaled: matrices that mix features. Not scaled: embeddings (they set the scale of the residual stream) and
# the short convolutions in front of recurrent mixers, which overflow when scaled.
UNSCALED = ("embed", "conv")


def model_dir(model: models.Model, cache: pathlib.Path) -> pathlib.Path:
    """Where this model's weights are, or will be, in the cache."""
    recipe = f"{RECIPE}/{SEED}/{model.gain}/{model.dtype}/{model.config_text()}"
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    return cache / f"{model.name}-{digest}"


def ensure(model: models.Model, cache: pathlib.Path) -> pathlib.Path:
    """Makes the model's directory unless it is in the cache; returns it.

    The directory appears under its final name only when it is complete, so a run that was interrupted
    leaves nothing that a later one would take for a model.
    """
    final = model_dir(model, cache)
    if (final / _last(model)).exists():
        return final
    cache.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix=f".{model.name}-", dir=cache))
    try:
        (work / "config.json").write_text(model.config_text())
        if model.refusal is None:
            _save_weights(model, work)
        # transformers rewrites the configuration when it saves; the engine gets ours.
        (work / "config.json").write_text(model.config_text())
        try:
            work.rename(final)
        except OSError:
            if not (final / _last(model)).exists():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return final


def _last(model: models.Model) -> str:
    """A file that is there when the directory is complete; a model that the engine refuses has no weights."""
    return "model.safetensors" if model.refusal is None else "config.json"


def _save_weights(model: models.Model, directory: pathlib.Path) -> None:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(SEED)
    config = transformers.AutoConfig.from_pretrained(directory)
    network = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim >= 2 and not any(part in name for part in UNSCALED):
                parameter.mul_(model.gain)
    network.to(getattr(torch, model.dtype)).save_pretrained(directory, max_shard_size="4GB")


def main() -> None:
    """Makes the named models, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=pathlib.Path, required=True, help="directory that keeps the weights")
    parser.add_argument("models", nargs="*", default=list(models.MODELS))
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for name in options.models:
        print(ensure(models.find(name), options.cache), flush=True)


if __name__ == "__main__":
    main()
