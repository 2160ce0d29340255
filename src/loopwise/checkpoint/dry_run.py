"""What an import will take, worked out from headers and `config.json`; no weights are read, nothing is written."""

from typing import Any

from loopwise.checkpoint.foreign import Plan, find, make_plan, open_foreign, read_config
from loopwise.checkpoint.native import expected_shapes
from loopwise.checkpoint.tensors import DTYPES, INDEX, Held

BYTES_PER_S = 300e6  # assumed: a plain disk, each byte read once and written once
CODE_OF = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def plan_on_paper(name: str) -> Plan:
    """The plan of an import; weights may be absent, then it follows from `config.json` alone."""
    folder = find(name)
    if folder.is_dir() and not (folder / INDEX).is_file() and not list(folder.glob("*.safetensors")):
        return make_plan(read_config(folder), Held({}))
    return open_foreign(name).plan


def estimate(plan: Plan) -> dict[str, Any]:
    """Bytes to read and write, peak memory and seconds.

    Peak memory is twice the largest tensor (its parts and the joined one): tensors stream. Without weights the dtype
    is the configuration's.
    """
    facts, shapes = plan.tensors.facts, expected_shapes(plan.config)
    item = DTYPES[CODE_OF.get(str(plan.foreign.get("torch_dtype") or plan.foreign.get("dtype")), "F32")].itemsize
    sizes = [
        sum(facts[s].bytes for s in entry.sources) if facts else shapes[entry.target].numel() * item
        for entry in plan.entries
    ]
    kept = sum(facts[name].bytes for name in plan.carried) if facts else 0
    source = sum(fact.bytes for fact in facts.values()) if facts else sum(sizes)
    disk = sum(sizes) + kept
    return {
        "source_bytes": source,
        "disk_bytes": disk,
        "peak_memory_bytes": 2 * max(sizes),
        "run_memory_bytes_fp32": 4 * plan.params,
        "seconds": (source + disk) / BYTES_PER_S,
        "assumed_bytes_per_s": BYTES_PER_S,
    }
