"""The connector's log lines. What is not a change of state is said once, however often its cause comes up."""

from __future__ import annotations

import logging
from collections.abc import Callable


class Notes:
    """One per connector instance; every line names Kvasir and the role."""

    def __init__(self, logger: logging.Logger, role: str) -> None:
        self._logger = logger
        self._role = role
        self._said: set[str] = set()
        self.on_failure: Callable[[], None] = lambda: None
        """Called with each error that the engine is spared."""

    def _first(self, key: str) -> bool:
        if key in self._said:
            return False
        self._said.add(key)
        return True

    def info(self, key: str, text: str) -> None:
        """Something that a user may want to know."""
        if self._first(key):
            self._logger.info("Kvasir (%s): %s", self._role, text)

    def warn(self, key: str, text: str) -> None:
        """Something that a user should change."""
        if self._first(key):
            self._logger.warning("Kvasir (%s): %s", self._role, text)

    def changed(self, text: str) -> None:
        """A change of state; said every time, since it comes with an event outside and not with a request."""
        self._logger.warning("Kvasir (%s): %s", self._role, text)

    def failure(self, key: str, doing: str, error: BaseException) -> None:
        """An error that the engine is spared, with its traceback."""
        self.on_failure()
        if self._first(key):
            self._logger.error(
                "Kvasir (%s): error while %s; the engine goes on without it: %s", self._role, doing, error, exc_info=error
            )
