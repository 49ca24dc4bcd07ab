"""Checks tests/data/sums/golden.txt with nothing but the standard library and the `xxhash` package.

The checksum of a part (docs/shm-layout.md, "Pool"), written a second time and as plainly as possible. Run it as
`python tests/sums_golden.py` after `pip install xxhash`; it prints a count and exits non-zero on a difference.
"""

import pathlib
import struct
import sys

from xxhash import xxh3_64_intdigest

LEAF_BYTES = 16384


def part_sum(data):
    leaves = [xxh3_64_intdigest(data[at : at + LEAF_BYTES]) for at in range(0, max(len(data), 1), LEAF_BYTES)]
    total = leaves[0] if len(leaves) == 1 else xxh3_64_intdigest(struct.pack(f"<{len(leaves)}Q", *leaves))
    return total or 1


def main():
    path = pathlib.Path(__file__).parent / "data" / "sums" / "golden.txt"
    rows = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    for length, step, want in rows:
        data = bytes(i * int(step) % 251 for i in range(int(length)))
        if f"{part_sum(data):016x}" != want:
            sys.exit(f"{length} bytes, step {step}: got {part_sum(data):016x}, golden file says {want}")
    assert len(rows) >= 15, f"only {len(rows)} vectors in {path.name}"
    print(f"{len(rows)} sums as in {path.name}")


if __name__ == "__main__":
    main()
