"""A scheduler that asks how much of a prompt is cached, and moves no byte of it.

    python store_and_load.py SOCKET     # stores a prompt
    python lookup.py SOCKET             # asks for it, and for others

A scheduler maps the index read-only. Once it knows the domain, a lookup reads memory and sends no message.
"""

from __future__ import annotations

import sys

import kvasir
from engine import BLOCK_TOKENS, SPANS, connect, domain, keys, look_up


def main(socket: str) -> None:
    client = connect(socket, "scheduler")
    # A scheduler agrees on the chunk size as every rank does. It registers nothing: it has no KV cache. So it
    # computes the seed that the ranks are told when they register.
    chunk_tokens = client.negotiate(BLOCK_TOKENS, SPANS)
    seed = kvasir.domain_seed(domain(1), chunk_tokens)

    stored = list(range(3 * chunk_tokens + BLOCK_TOKENS))
    # A token in the second chunk differs: keys from there on do, those before it do not.
    another_second_chunk = stored.copy()
    another_second_chunk[chunk_tokens + 5] = 99_999
    another_first_token = [99_999, *stored[1:]]

    prompts = {
        "the same prompt": stored,
        "another second chunk": another_second_chunk,
        "another first token": another_first_token,
    }
    for request, (what, tokens) in enumerate(prompts.items()):
        chain = keys(seed, chunk_tokens, tokens)
        try:
            hit = look_up(client, seed, chain, request)
        except kvasir.KvasirError as error:
            if error.kind != "NotRegistered":
                raise
            print("no engine of this model has registered yet")
            return
        print(f"{what}: hit {hit.hit_tokens} of {len(tokens)} tokens")
        # What was found is pinned, so that it is there when a worker loads it. Nobody will here.
        client.release([hit.pin] if hit.pin else [])
    stats = client.stats()
    print(f"{stats['direct_lookups']} of {stats['lookups']} lookups without a message")
    client.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: lookup.py SOCKET")
    main(sys.argv[1])
