"""Near-duplicate prompts: MinHash over word shingles, cut into bands that two like prompts share.

Broder 1997, Leskovec et al. 2014, chapter 3. With 8 bands of 8 values, two prompts of Jaccard similarity s
share a band with probability 1 - (1 - s^8)^8: 99% at 0.9, 77% at 0.8, 5% at 0.5. Signatures are datasketch's;
the bands are kept in the row, so that thinning is the same on every worker and survives a restart.
"""

import hashlib
from typing import Any

from ratchet.prompts import words

BANDS = 8
ROWS = 8
SHINGLE = 3
SEED = 1


def bands_of(text: str) -> list[int]:
    """The 64-bit band keys of a text; two texts that share one are near-duplicates."""
    from datasketch import MinHash  # brings SciPy along, which takes longer to import than all of the worker

    parts = words(text)
    shingles = {" ".join(parts[start : start + SHINGLE]) for start in range(max(1, len(parts) - SHINGLE + 1))}
    signature: Any = MinHash(num_perm=BANDS * ROWS, seed=SEED)
    signature.update_batch([shingle.encode() for shingle in sorted(shingles)])
    values: bytes = signature.hashvalues.astype(">u8").tobytes()
    size = len(values) // BANDS
    return [_key(band, values[band * size : (band + 1) * size]) for band in range(BANDS)]


def _key(band: int, values: bytes) -> int:
    digest = hashlib.blake2b(bytes([band]) + values, digest_size=8).digest()
    return int.from_bytes(digest, signed=True)
