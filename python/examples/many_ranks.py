"""A tensor parallel engine: each rank holds one part of every object.

    python many_ranks.py SOCKET [RANKS]

The ranks are threads here and processes in an engine; the server sees no difference. They do not wait for each
other: an object becomes visible with its last part, whoever brings it.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import kvasir
from engine import BLOCK_TOKENS, SPANS, Engine, connect, domain, keys, look_up


def main(socket: str, ranks: int) -> None:
    scheduler = connect(socket, "scheduler")
    # All ranks compute the same keys: a part is named by the object and its number.
    chunk_tokens = scheduler.negotiate(BLOCK_TOKENS, SPANS)
    seed = kvasir.domain_seed(domain(ranks), chunk_tokens)
    chain = keys(seed, chunk_tokens, [1000 + token for token in range(chunk_tokens)])

    def hit_tokens() -> int:
        hit = look_up(scheduler, seed, chain, 0).hit_tokens
        scheduler.end_session(0)
        return hit

    # Until all ranks have registered, nobody can tell whether an object is complete, and a lookup is a miss. Then
    # it is a miss until the last part is there.
    engines = []
    for rank in range(ranks):
        engine = Engine(socket, rank, ranks)
        engines.append(engine)
        before = hit_tokens()
        outcome = store(engine, chain)
        print(
            f"rank {rank} registered: hit {before}; stored its part: {outcome}, "
            f"hit {hit_tokens()} of {chunk_tokens} tokens"
        )

    # The ranks load at the same time, each its own part. The scheduler's pin keeps all of them until then.
    hit = look_up(scheduler, seed, chain, 1)
    with ThreadPoolExecutor(ranks) as threads:
        loaded = list(threads.map(lambda engine: load(engine, chain), engines))
    scheduler.release([hit.pin] if hit.pin else [])
    if not all(loaded):
        sys.exit(f"the ranks loaded {loaded}")
    print("every rank loaded its part, every byte as it was stored")
    for client in [scheduler, *(engine.client for engine in engines)]:
        client.close()


def store(engine: Engine, chain: kvasir.KeyChain) -> str:
    """Stores this rank's part of the only chunk, and says what became of it."""
    blocks = engine.chunk_tokens // BLOCK_TOKENS
    for block in range(blocks):
        # No two ranks and no two blocks have the same.
        engine.write_block(1 + block, 1 + engine.rank * blocks + block)
    engine.wait_for_room()
    ids = kvasir.pack_blocks(list(range(1, 1 + blocks)), 0, blocks)[0]
    ((outcome,),) = engine.client.store(engine.rank, [(chain.chunk_key(0), None, 0, engine.chunk_tokens, [ids])])
    return outcome


def load(engine: Engine, chain: kvasir.KeyChain) -> bool:
    """Loads this rank's part into other blocks, and compares the bytes."""
    blocks, first = engine.chunk_tokens // BLOCK_TOKENS, 100
    ids = kvasir.pack_blocks(list(range(first, first + blocks)), 0, blocks)[0]
    if engine.client.load(1, engine.rank, [(chain.chunk_key(0), 0, engine.chunk_tokens, [ids])]) != [[True]]:
        return False
    return all(engine.read_block(first + block) == engine.read_block(1 + block) for block in range(blocks))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: many_ranks.py SOCKET [RANKS]")
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 4)
