"""The models of the end-to-end harness by name: one row per architecture, among them those that the engine refuses.

Used by `weights.py` (to make weights), `demo.py` and the tests.
"""

from __future__ import annotations

from model import VOCABULARY, Model
from models_attention import AMX, attention_models
from models_recurrent import recurrent_models
from models_refused import refused_models

__all__ = ["MODELS", "VOCABULARY", "Model", "find", "rows"]


def rows(amx: bool) -> list[Model]:
    """All rows, as they are on a machine with or without AMX."""
    return [*attention_models(amx), *recurrent_models(), *refused_models()]


MODELS: dict[str, Model] = {model.name: model for model in rows(AMX)}


def find(name: str) -> Model:
    """The model of that name, or an error that lists the names there are."""
    try:
        return MODELS[name]
    except KeyError:
        raise SystemExit(f"unknown model {name!r}; choose one of: {', '.join(MODELS)}") from None
