"""Speed of masking secrets in logs: python benchmarks/masking.py [MB of each log]

Logs as `reading` reads them, by 64 KiB as an engine hands output on, with none, 1, 5 and 30 known secrets that are not
in them: tokens, keys, digits and passwords with odd characters.  Seconds are of the processor, the best of three.
"""

from __future__ import annotations

import random
import string
import sys
import time

from reading import CHUNK_BYTES, REAL, STEP

from madlite.secrets import Redactor

RANDOM = random.Random(7)


def main(size_mb: int) -> None:
    steps = "".join(STEP.format(rank=n % 8, n=n, loss=7 - n / 9e3, tps=2000 + n % 111) for n in range(9000)).encode()
    print("| log | secrets | MB/s |\n|---|--:|--:|")
    for name, log in (("a real log, repeated", REAL.read_bytes()), ("coloured steps", steps)):
        data = (log * (size_mb * 10**6 // len(log) + 1))[: size_mb * 10**6]
        for count in (0, 1, 5, 30):
            known = [secret(n) for n in range(count)]
            print(f"| {name} | {count} | {size_mb / min(took_s(data, known) for _ in range(3)):.0f} |")


def secret(n: int) -> str:
    kinds = (
        "hf_" + chars(34),
        chars(40, "0123456789abcdef"),
        chars(40, string.ascii_letters + string.digits + "/+"),
        f"p@ss/w+rd=é\"'$ \\ <&>{n}",
        chars(12),
    )
    return kinds[n % len(kinds)]


def chars(size: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "".join(RANDOM.choice(alphabet) for _ in range(size))


def took_s(data: bytes, known: list[str]) -> float:
    redactor, size = Redactor(known), 0
    begun_s = time.process_time()
    for at in range(0, len(data), CHUNK_BYTES):
        size += len(redactor.feed(data[at : at + CHUNK_BYTES]))
    size += len(redactor.flush())
    if size != len(data):
        raise RuntimeError("something of it was masked")
    return time.process_time() - begun_s


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
