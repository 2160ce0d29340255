"""Text to training data: `OUT/tokenizer.json`, `OUT/train/` and `OUT/valid/` (token shards), `OUT/prepare.json`."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from loopwise.config import InputError
from loopwise.data.shards import SHARD_TOKENS, ShardWriter, unwritable
from loopwise.data.split import HOLDOUT, DocumentHash, check_holdout, is_held_out, position
from loopwise.data.text import documents
from loopwise.data.tokenizer import Tokenizer
from loopwise.records import write_json

BATCH_BYTES = 1 << 22  # text encoded at a time: enough for every core, little memory
FEW = 256  # with fewer documents than this the hash may hold out none of them


@dataclass(frozen=True, kw_only=True)
class PrepareResult:
    """What was written. `sha256` is the hash of all documents in order; `valid_*` count the held-out ones."""

    folder: str
    tokenizer: str
    tokenizer_sha256: str
    vocab_size: int
    tokens: int
    documents: int
    text_bytes: int
    valid_tokens: int
    valid_documents: int
    holdout: float
    sha256: str


def prepare(
    texts: Sequence[str],
    out: Path,
    *,
    tokenizer: Tokenizer | Path | str | None = None,
    vocab_size: int = 4096,
    holdout: float = HOLDOUT,
    shard_tokens: int = SHARD_TOKENS,
    progress: Callable[[int], None] | None = None,
) -> PrepareResult:
    """Encode `texts` (see `data.text`) into shards under `out`; the text is read once, twice to train a tokenizer.

    `tokenizer` is a `Tokenizer`, or the path of one; None trains one of `vocab_size` on the training documents.
    Documents whose hash falls below `holdout` go to `valid/` and are never trained on; with few documents `holdout`
    is raised until one of them is held out (0 holds out none). `progress` is called with the number of text bytes
    done. Bad text, a disk without space and a folder that cannot be written raise `InputError`.
    """
    check_holdout(holdout)
    if "factbook:all" in texts and holdout < HOLDOUT:
        raise InputError(
            f"holdout is {holdout}: text 'factbook:all' needs at least {HOLDOUT}, or what it is "
            "evaluated on would be trained on; or use 'factbook:train'"
        )
    holdout = settle(texts, holdout)
    used = _tokenizer(texts, tokenizer, vocab_size, holdout)
    try:
        out.mkdir(parents=True, exist_ok=True)
        result = _encode(texts, out, used, holdout, shard_tokens, progress)
        used.save(out / "tokenizer.json")
        write_json(out / "prepare.json", {"texts": list(texts), **asdict(result)})
    except OSError as error:
        raise unwritable(out, error) from None
    return result


def settle(texts: Sequence[str], holdout: float) -> float:
    """`holdout`, or the next larger fraction that holds out a document when there are few and it holds out none.

    Text of which nothing would be left to train on raises `InputError`.
    """
    found = [position(text) for text in islice(documents(texts), FEW)]
    if len(found) == FEW or holdout == 0:
        return holdout
    settled = max(holdout, math.nextafter(min(found), 1.0))
    if max(found) < settled:
        count = f"{len(found)} document{'s' * (len(found) > 1)}"
        raise InputError(f"text of {count} leaves none to train on at holdout {holdout}: give more text or holdout 0")
    return settled


def _tokenizer(
    texts: Sequence[str], given: Tokenizer | Path | str | None, vocab_size: int, holdout: float
) -> Tokenizer:
    if isinstance(given, Tokenizer):
        return given
    if given is not None:
        return Tokenizer.load(given)
    return Tokenizer.train(documents(texts, split="train", holdout=holdout), vocab_size=vocab_size)


def _encode(
    texts: Sequence[str],
    out: Path,
    tokenizer: Tokenizer,
    holdout: float,
    shard_tokens: int,
    progress: Callable[[int], None] | None,
) -> PrepareResult:
    digest = DocumentHash()
    source = {"texts": list(texts), "holdout": holdout}
    shared: dict[str, Any] = {"vocab_size": tokenizer.size, "tokenizer_sha256": tokenizer.digest}
    shared |= {"shard_tokens": shard_tokens}
    with (
        ShardWriter(out / "valid", source={**source, "split": "valid"}, **shared) as valid,
        ShardWriter(out / "train", source={**source, "split": "train"}, **shared) as train,
    ):
        for batch in batches(documents(texts), BATCH_BYTES):
            for text, ids in zip(batch, tokenizer.encode_batch(batch), strict=True):
                digest.add(text)
                (valid if is_held_out(text, holdout) else train).add([*ids, tokenizer.eos_id])
            if progress:
                progress(digest.text_bytes)
    return PrepareResult(
        folder=str(out),
        tokenizer=str(out / "tokenizer.json"),
        tokenizer_sha256=tokenizer.digest,
        vocab_size=tokenizer.size,
        tokens=train.tokens + valid.tokens,
        documents=digest.documents,
        text_bytes=digest.text_bytes,
        valid_tokens=valid.tokens,
        valid_documents=valid.documents,
        holdout=holdout,
        sha256=digest.hexdigest(),
    )


def batches(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Group texts into lists of about `size` characters."""
    group: list[str] = []
    held = 0
    for text in texts:
        group.append(text)
        held += len(text)
        if held >= size:
            yield group
            group, held = [], 0
    if group:
        yield group
