"""Static batches in `transformers`, for benchmarks: the exported model under its own `generate`."""

from pathlib import Path
from typing import Any

import torch

from loopwise.checkpoint.hf_export import to_hf
from loopwise.checkpoint.native import Checkpoint


def load_exported(checkpoint: Checkpoint, folder: Path, depth: int) -> Any | None:
    """Export to `folder` and load with `transformers`; None where that is not installed."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        return None
    to_hf(checkpoint, folder, num_steps=depth)
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, local_files_only=True).eval()


def static_batches(model: Any, prompts: list[list[int]], lengths: list[int], rows: int) -> list[list[int]]:
    """Greedy continuations in batches of `rows`, padded on the left, each batch until its longest is done; the first
    `lengths[i]` tokens of each."""
    found = []
    for start in range(0, len(prompts), rows):
        part, wanted = prompts[start : start + rows], lengths[start : start + rows]
        width = max(map(len, part))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in part])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part])
        most = max(wanted)
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=mask, max_new_tokens=most, min_new_tokens=most, do_sample=False, pad_token_id=0
            )
        found += [row[:n] for row, n in zip(out[:, width:].tolist(), wanted, strict=True)]
    return found
