"""Offers: hits that the engine was told of and has not taken up. Each holds its pin until its request is told what was
allocated for it, is asked about again, or ends; the engine may take steps in between.
"""

from __future__ import annotations

from collections.abc import Callable

from kvasir.vllm.servers import Pins
from kvasir.vllm.notes import Notes
from kvasir.vllm.requests import Offer, RequestState


class Offers:
    """The open offers of an engine, the oldest first."""

    def __init__(self, release: Callable[[int | Pins], None], notes: Notes) -> None:
        self._release = release
        self._notes = notes
        self._open: dict[int, RequestState] = {}
        """By label."""
        self.given_up = 0
        """Offers whose pins had to go for another request's hit."""

    def make(self, state: RequestState, offer: Offer) -> None:
        """Opens an offer; an earlier one of the same request has been withdrawn."""
        state.offer = offer
        self._open[state.label] = state

    def take(self, state: RequestState) -> Offer | None:
        """Ends an offer and hands its pin over."""
        offer, state.offer = state.offer, None
        self._open.pop(state.label, None)
        return offer

    def withdraw(self, state: RequestState) -> None:
        """Ends an offer, if there is one, and releases its pin."""
        offer = self.take(state)
        if offer is not None:
            self._release(offer.hit.pin)

    def give_way(self) -> bool:
        """Gives the oldest offer up for a hit that would be shorter beside it. False: there is none.

        Should the engine take it up all the same, that load fails and its tokens are computed.
        """
        for state in self._open.values():
            break
        else:
            return False
        self.given_up += 1
        self._notes.warn(
            "offers",
            "an offered hit was given up for another request's before the engine took it up: the pins of one client keep "
            "at most a quarter of the pool; enlarge --pool-size",
        )
        self.withdraw(state)
        return True
