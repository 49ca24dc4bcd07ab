"""Log lines about what keeps the cache from being used: when it begins, when its reason changes, when it is over."""

from __future__ import annotations

from kvasir.vllm.notes import Notes

# Reasons that are said of one outage; a fault that words itself anew each time says no more than that.
REASONS_MAX = 8


class Outage:
    """One thing that may be out of service, again and again."""

    def __init__(self, notes: Notes, over: str) -> None:
        self._notes = notes
        self._over = over
        self._said: set[str] = set()

    @property
    def lasts(self) -> bool:
        """Whether it is out of service."""
        return bool(self._said)

    def begin(self, reason: str) -> None:
        """It is, for a reason that has been said already."""
        self._said.add(reason)

    def say(self, reason: str, text: str) -> None:
        """It is out of service: says so with the reason, each reason once."""
        if reason not in self._said and len(self._said) < REASONS_MAX:
            self._said.add(reason)
            self._notes.changed(text)

    def end(self) -> None:
        """It is in service."""
        if self._said:
            self._said.clear()
            self._notes.changed(self._over)


class Workers:
    """Which workers cannot load or store now, by their own account with each step's output."""

    def __init__(self, notes: Notes) -> None:
        self._outage = Outage(notes, "all workers can load and store again")
        self._unable: dict[tuple[int, int], tuple[bool, str]] = {}

    @property
    def load(self) -> bool:
        """Whether all of them can load: what is promised has to be loaded by each."""
        return all(loads for loads, _ in self._unable.values())

    @property
    def store(self) -> bool:
        """Whether all of them can store: an object is whole with the parts of each."""
        return not self._unable

    def report(self, ability: dict[tuple[int, int], tuple[bool, str]]) -> None:
        """Takes reports: per worker (server, rank there) whether it can load, and why it is not as it should be."""
        for worker, (loads, why) in ability.items():
            if why:
                self._unable[worker] = (loads, why)
                what = "store" if loads else "load or store, so nothing is promised"
                server, rank = worker
                name = f"worker {rank}" if not server else f"worker {rank} of server {server}"
                self._outage.say(f"{worker} {why}", f"{name} cannot {what} ({why})")
            else:
                self._unable.pop(worker, None)
        if not self._unable:
            self._outage.end()
