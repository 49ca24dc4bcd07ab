"""An engine that stores a prompt's KV cache and gets it back, byte for byte.

    python store_and_load.py            # with a server of its own
    python store_and_load.py SOCKET     # with the server that listens there

Where the engine's memory is and how it registers: `engine.py`.
"""

from __future__ import annotations

import sys

import kvasir
from engine import BLOCK_TOKENS, BLOCKS, Engine, keys, look_up, server_at

REQUEST = 1
"""A number that the engine chooses per request: it labels the pins of that request."""


def main(socket: str) -> None:
    engine = Engine(socket)

    # A prompt of three chunks and one block more, in blocks 1, 2, 3 and so on. Block 0 is the null block of an
    # engine: it holds nothing, and the client neither reads nor writes it.
    tokens = list(range(3 * engine.chunk_tokens + BLOCK_TOKENS))
    blocks = len(tokens) // BLOCK_TOKENS
    for block in range(1, blocks + 1):
        engine.write_block(block, block)

    # Each full chunk is one object, and what is left is a tail. Objects of one length that follow each other are
    # one run. A run names the object before its first.
    chain = keys(engine.seed, engine.chunk_tokens, tokens)
    chunks, ids = chain.num_chunks, list(range(1, blocks + 1))
    in_chunks = blocks - 1
    runs = [
        (chain.keys(0, chunks), None, 0, engine.chunk_tokens, [kvasir.pack_blocks(ids, 0, in_chunks)[0]]),
        (
            chain.tail_key(chunks, BLOCK_TOKENS),
            chain.parent_key(chunks),
            0,
            BLOCK_TOKENS,
            [kvasir.pack_blocks(ids, in_chunks, blocks)[0]],
        ),
    ]
    engine.wait_for_room()
    for run, outcomes in zip(runs, engine.client.store(0, runs)):
        print(f"store of {len(outcomes)} x {run[3]} tokens: {', '.join(sorted(set(outcomes)))}")

    # Another request has the same prompt. The pin keeps what was found until it is loaded.
    hit = look_up(engine.client, engine.seed, chain, REQUEST)
    print(f"hit: {hit.hit_tokens} of {len(tokens)} tokens")

    # Its blocks are others, as it happens.
    first = BLOCKS - blocks
    loads = []
    for run_keys, group, first_chunk, each in hit.runs:
        begin = first_chunk * engine.chunk_tokens // BLOCK_TOKENS
        end = begin + len(run_keys) // 32 * each // BLOCK_TOKENS
        into = list(range(first + begin, first + end))
        loads.append((run_keys, group, each, [kvasir.pack_blocks(into, 0, len(into))[0]]))
    loaded = engine.client.load(REQUEST, 0, loads)
    engine.client.release([hit.pin])

    # A load can fail at any time: an engine then computes those tokens again.
    if hit.hit_tokens < len(tokens) or not all(all(run) for run in loaded):
        sys.exit(f"loaded {loaded} of {hit.hit_tokens} tokens")
    for block in range(blocks):
        if engine.read_block(first + block) != engine.read_block(1 + block):
            sys.exit(f"block {block} has other bytes than were stored")
    print(f"loaded: {blocks} blocks, every byte as it was stored")
    engine.client.close()


if __name__ == "__main__":
    with server_at(sys.argv[1] if len(sys.argv) > 1 else None) as socket:
        main(socket)
