"""The support table: for every architecture what a run of the demo found."""

from __future__ import annotations

import dataclasses
from typing import Any

import models

EQUAL = "equal"
HITS_ONLY = "hits only"
REFUSED = "the engine refuses"
FAILED = "FAILED"

COLUMNS = (
    "architecture", "`--model`", "layers", "needs", "run with", "prompt", "chunk", "own hit", "Kvasir's hit", "state"
)  # fmt: skip
NUMBERS = range(5, 9)


@dataclasses.dataclass
class Row:
    """One architecture."""

    model: models.Model
    document: dict[str, Any] | None = None
    """The demo's document, where the demo came to its end."""
    wrong: list[str] = dataclasses.field(default_factory=list)
    """Every promise that was not kept."""
    refusal: str = ""
    """The engine's own message, where it refuses as expected."""

    @property
    def state(self) -> str:
        """One of the four above."""
        if self.wrong:
            return FAILED
        if self.model.refusal is not None:
            return REFUSED
        return EQUAL if self.model.comparable else HITS_ONLY

    @property
    def reason(self) -> str:
        """What else there is to say; the engine's or the demo's words where there are some."""
        return "; ".join(self.wrong) or self.refusal or self.model.note

    def report(self) -> dict[str, Any]:
        """The row as it stands in the JSON file."""
        return {
            "architecture": self.model.architecture,
            "model": self.model.name,
            "layers": self.model.family,
            "needs": self.model.needs,
            "flags": self.model.flags,
            "state": self.state,
            "reason": self.reason,
            "result": self.document,
        }

    def markdown(self) -> str:
        """The row of the printed table."""
        return line([*about(self.model), *self._numbers(), f"{self.state}: {self.reason}" if self.reason else self.state])

    def _numbers(self) -> list[str]:
        if self.document is None:
            return ["-"] * len(NUMBERS)
        cached = {phase["name"]: phase["cached_tokens"] for phase in self.document["phases"]}
        own = cached["own_prefix_cache"] if self.model.comparable else "-"
        counts = (self.model.prompt_tokens, self.document["chunk_size"], own, cached["warm_new_engine"])
        return [str(count) for count in counts]


def about(model: models.Model) -> list[str]:
    """The cells that do not depend on a run."""
    flags = f"`{model.flags}`" if model.flags else "-"
    return [model.architecture, f"`{model.name}`", model.family, model.needs or "-", flags]


def line(cells: list[str] | tuple[str, ...]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def head() -> str:
    """The first two lines of the printed table."""
    return line(COLUMNS) + "\n|" + "|".join("---:" if at in NUMBERS else "---" for at in range(len(COLUMNS))) + "|"
