"""Export as a `transformers` folder whose code travels with the weights (`trust_remote_code`), with a model card."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from loopwise.checkpoint.foreign import copy_companions
from loopwise.checkpoint.native import Checkpoint, replace_folder
from loopwise.checkpoint.tensors import Facts, Folder, write_shards
from loopwise.config import InputError
from loopwise.model.cost import Cost
from loopwise.records import read_json, write_bytes, write_json

CODE = Path(__file__).parent / "hf"
FILES = ("configuration_loopwise.py", "modeling_loopwise.py")
SHARD_BYTES = 4_000_000_000
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")  # usual names of the end-of-text token
NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def to_hf(checkpoint: Checkpoint, out: Path, *, num_steps: int | None = None) -> Path:
    """Write `out`: config, code, weights (in their stored dtype), tokenizer, model card. `num_steps` is the depth it
    runs at by default (the training mean if None). Raises `InputError` for depths out of range and for models whose
    attention windows bite within their context."""
    c = checkpoint.config
    depth = max(1, min(c.max_depth, round(c.mean_depth))) if num_steps is None else num_steps
    if not 1 <= depth <= c.max_depth:
        raise InputError(f"num_steps is {depth}: use 1 to {c.max_depth}")
    if any(0 < window < c.context for window in c.windows):
        raise InputError(f"{checkpoint.name} has attention windows, which --format hf lacks: use native-source")
    temporary = out.with_name(f".{out.name}.writing")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    native = Folder(checkpoint.folder)
    facts, ours = _shards(native)

    def read(name: str) -> Tensor:
        return native.read(ours[name])

    write_shards(temporary, facts, read)
    for name in FILES:
        shutil.copyfile(CODE / name, temporary / name)
    copy_companions(checkpoint.folder, temporary)
    _complete_tokenizer(temporary, c.context)
    config = _config(checkpoint, depth, next(iter(native.facts.values())).dtype) | special_ids(temporary)
    write_bytes(temporary / "config.json", (json.dumps(config, indent=2) + "\n").encode())
    write_bytes(temporary / "README.md", model_card(checkpoint, depth).encode())
    if (checkpoint.folder / "tiers.json").is_file():
        shutil.copyfile(checkpoint.folder / "tiers.json", temporary / "tiers.json")
    return replace_folder(temporary, out)


def _shards(native: Folder) -> tuple[dict[str, Facts], dict[str, str]]:
    """Their names with files of at most `SHARD_BYTES`, and our name for each."""
    ours = {"lm_head.weight" if name == "head.weight" else f"model.{name}": name for name in native.facts}
    groups, size = 1, 0
    facts: dict[str, Facts] = {}
    for theirs, name in ours.items():
        fact = native.facts[name]
        if size and size + fact.bytes > SHARD_BYTES:
            groups, size = groups + 1, 0
        size += fact.bytes
        facts[theirs] = fact._replace(file=str(groups))
    file = "model-{:05d}-of-{:05d}.safetensors" if groups > 1 else "model.safetensors"
    return {name: fact._replace(file=file.format(int(fact.file), groups)) for name, fact in facts.items()}, ours


def _config(checkpoint: Checkpoint, depth: int, dtype: str) -> dict[str, Any]:
    c = checkpoint.config
    found: dict[str, Any] = {
        "model_type": "loopwise",
        "architectures": ["LoopwiseForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_loopwise.LoopwiseConfig",
            "AutoModel": "modeling_loopwise.LoopwiseModel",
            "AutoModelForCausalLM": "modeling_loopwise.LoopwiseForCausalLM",
        },
        "loopwise": c.to_dict(),
        "num_steps": depth,
        "dtype": NAMES.get(dtype, "float32"),
        "tie_word_embeddings": c.tied,
    }
    return found


def _complete_tokenizer(folder: Path, context: int) -> None:
    """`transformers` takes the special tokens from `tokenizer_config.json`: write one where there is none."""
    path = folder / "tokenizer_config.json"
    if path.is_file() or not (folder / "tokenizer.json").is_file():
        return
    added = {token["content"] for token in read_json(folder / "tokenizer.json").get("added_tokens", [])}
    eos = next((name for name in ENDS if name in added), None)
    found = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context, "eos_token": eos}
    write_json(path, {name: value for name, value in found.items() if value is not None})


def special_ids(folder: Path) -> dict[str, int]:
    """bos, eos and pad ids, from the tokenizer's own words for them; ids that the vocabulary lacks are left out."""
    if not (folder / "tokenizer_config.json").is_file() or not (folder / "tokenizer.json").is_file():
        return {}
    told, stored = read_json(folder / "tokenizer_config.json"), read_json(folder / "tokenizer.json")
    ids = {token["content"]: token["id"] for token in stored.get("added_tokens", [])}
    found = {}
    for kind in ("bos", "eos", "pad"):
        token = told.get(f"{kind}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if token in ids:
            found[f"{kind}_token_id"] = ids[token]
    return found


def model_card(checkpoint: Checkpoint, depth: int) -> str:
    """README.md: what it is, where it came from, what each depth costs and which tiers were calibrated."""
    c, cost = checkpoint.config, Cost.of(checkpoint.config)
    manifest = checkpoint.folder / "manifest.json"
    lines = [
        "---",
        "library_name: transformers",
        "tags: [loopwise, depth-recurrent]",
        "---",
        "",
        f"# {checkpoint.name}",
        "",
        f"A depth-recurrent language model ({c.family}): {c.prelude_layers} prelude, {c.core_layers} core (looped) and "
        f"{c.coda_layers} coda layers of width {c.d_model}; {cost.params['total']:,} parameters. Exported by Loopwise "
        f"to run at a fixed depth: `num_steps={depth}` by default, trained with a mean of {c.mean_depth:g}.",
        "",
        "```python",
        "from transformers import AutoModelForCausalLM",
        f'model = AutoModelForCausalLM.from_pretrained("{checkpoint.name}", trust_remote_code=True)',
        f"model.generate(**inputs, num_steps={depth})",
        "```",
        "",
        "| depth | FLOPs per token |",
        "|---|---|",
        *(f"| {d} | {cost.flops(d):,.0f} |" for d in sorted({1, depth, c.max_depth})),
        "",
    ]
    lines += _tiers(checkpoint.tiers) if checkpoint.tiers else []
    lines += _origin(read_json(manifest)) if manifest.is_file() else []
    return "\n".join(lines) + "\n"


def _tiers(tiers: Mapping[str, Any]) -> list[str]:
    rows = [
        f"| {t['name']} | `{t['policy']}` | {t.get('mean_depth', 0):.2f} | {t.get('loss_increase', 0):+.4f} |"
        for t in tiers["tiers"]
    ]
    head = ["## Tiers", "", "Calibrated exits; only Loopwise runs them, this export has a fixed depth.", ""]
    return [*head, "| tier | policy | mean depth | loss increase, nats |", "|---|---|---|---|", *rows, ""]


def _origin(manifest: Mapping[str, Any]) -> list[str]:
    keys = ("command", "commit", "seed", "data_sha256", "created")
    return ["## Origin", "", *(f"- {key}: `{manifest[key]}`" for key in keys if manifest.get(key) is not None), ""]
