"""Use an exported folder with nothing but torch and transformers: load, compare, generate, cache, padding, depth.

    loopwise export tiny --format hf --out /tmp/check/tiny-hf
    python benchmarks/interop/clean_export.py reference tiny /tmp/check/reference.json
    cd /tmp && CLEAN_VENV/bin/python .../clean_export.py check /tmp/check/tiny-hf /tmp/check/reference.json

`reference` needs Loopwise and stores its logits; `check` refuses to run where Loopwise can be imported.
"""

import importlib.util
import json
import sys
from pathlib import Path

import torch

LENGTHS, DEPTHS, NEW = (19, 11, 5), (1, 3, 8), 12


def prompts(vocab: int) -> list[list[int]]:
    """Token ids of some rows of different lengths."""
    draw = torch.Generator().manual_seed(0)
    return [torch.randint(3, vocab, (n,), generator=draw).tolist() for n in LENGTHS]


def reference(name: str, path: Path) -> None:
    """Store Loopwise's own logits of the last position of every row at several depths."""
    from loopwise.checkpoint.native import open_checkpoint

    checkpoint = open_checkpoint(name)
    model, rows = checkpoint.model(), prompts(checkpoint.config.vocab_size)
    with torch.no_grad():
        last = {str(d): [model(torch.tensor([row]), d)[0, -1].tolist() for row in rows] for d in DEPTHS}
    path.write_text(json.dumps({"rows": rows, "last": last}))


def check(folder: str, path: Path) -> dict[str, object]:
    """Every promise of the export; raises AssertionError where one is broken."""
    import transformers

    assert importlib.util.find_spec("loopwise") is None, "loopwise is installed here: use a clean environment"
    stored = json.loads(path.read_text())
    rows = [torch.tensor([row]) for row in stored["rows"]]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    errors = {}
    with torch.no_grad():
        for depth, last in stored["last"].items():
            found = [model(row, num_steps=int(depth)).logits[0, -1] for row in rows]
            errors[depth] = max(float((f - torch.tensor(w)).abs().max()) for f, w in zip(found, last, strict=True))
    assert max(errors.values()) <= 2e-4, errors
    how = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    alone = [model.generate(row, **how)[0, row.shape[1] :] for row in rows]
    for row, made in zip(rows, alone, strict=True):
        again = model.generate(row, use_cache=False, **how)[0, row.shape[1] :]
        assert again.tolist() == made.tolist(), "the cache changes what is generated"
    longest = max(LENGTHS)
    padded, mask = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        padded[i, -row.shape[1] :], mask[i, -row.shape[1] :] = row[0], 1
    together = model.generate(padded, attention_mask=mask, **how)[:, longest:]
    assert together.tolist() == [made.tolist() for made in alone], "left padding changes what is generated"
    shallow = model.generate(rows[0], num_steps=1, **how)
    override = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, num_steps=1).eval()
    assert shallow.tolist() == override.generate(rows[0], **how).tolist(), "num_steps means two things"
    text = tokenizer.decode(tokenizer("The capital of France")["input_ids"])
    assert text == "The capital of France", text
    return {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "largest_logit_error": errors,
        "eos_token_id": model.config.eos_token_id,
        "checked": ["logits", "generate", "cache", "left padding", "num_steps", "tokenizer"],
    }


if __name__ == "__main__":
    step, source, file = sys.argv[1:]
    if step == "reference":
        reference(source, Path(file))
    else:
        print(json.dumps(check(source, Path(file))))
