"""Keys of prompt blocks: a hash chain, so that a key stands for everything from the start of the prompt to its block.

The chain starts from what else the stored keys and values depend on: weights, KV layout, prefill policy, dtype and the
request's salt. It never includes the request's own policy or tier, because prompts are always computed under the
engine's one prefill policy: a prompt computed for one tier serves every other.
"""

import hashlib
from array import array
from collections.abc import Sequence


def chain_start(*parts: str) -> bytes:
    """The start of a chain; parts are kept apart by their lengths."""
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def chain(start: bytes, tokens: Sequence[int], block_size: int, blocks: int) -> list[bytes]:
    """Keys of the first `blocks` whole blocks of `tokens`."""
    keys, key = [], start
    for i in range(blocks):
        words = array("q", tokens[i * block_size : (i + 1) * block_size])
        key = hashlib.blake2b(key + words.tobytes(), digest_size=16).digest()
        keys.append(key)
    return keys
