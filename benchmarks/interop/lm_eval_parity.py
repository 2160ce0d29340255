"""Compare `loopwise eval` on an imported checkpoint with `lm_eval --model hf` on the same weights, item by item.

    python benchmarks/interop/lm_eval_parity.py tasks --data DATA --out WORK/tasks
    lm_eval run --model hf --model_args pretrained=FOLDER,dtype=float32 --tasks loopwise_TASK \
        --include_path WORK/tasks --limit 200 --log_samples --output_path WORK/hf/TASK
    loopwise eval IMPORTED --tasks TASK --data DATA --limit 200 --policy depth=1 --out WORK/ours/TASK
    python benchmarks/interop/lm_eval_parity.py compare WORK --out benchmarks/results/interop

FOLDER may hold a GGUF file: `pretrained=FOLDER,gguf_file=NAME.gguf,dtype=float32`. `tasks` writes Loopwise's own task
files for lm-eval's command line; the last command writes `lm_eval.json`, keeping the rows of tasks that WORK lacks.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import yaml

from loopwise.config import InputError
from loopwise.eval.run import LOCAL
from loopwise.records import read_json, write_json

SCORES = ("acc", "acc_norm", "perplexity")
DOCS = "from loopwise.eval.run import PREPARE\n\n\ndef hellaswag(docs):\n    return docs.map(PREPARE['hellaswag'])\n"


def tasks(data: Path, out: Path) -> None:
    """Task files that read their items from `data`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "docs.py").write_text(DOCS)
    for name, path in LOCAL.items():
        task = yaml.safe_load(path.read_text("utf-8"))
        file = task["metadata"].pop("file")
        task["dataset_kwargs"] = {"data_files": {"test": str((data / file).resolve())}}
        prepare = "process_docs: !function docs.hellaswag\n" if name == "hellaswag" else ""
        (out / path.name).write_text(yaml.safe_dump(task) + prepare)


def theirs(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Scores and items of an lm-eval run, in the order of the items."""
    results = sorted(folder.rglob("results_*.json"))
    if not results:
        raise InputError(f"{folder}: holds no results of lm_eval: run it first")
    scores = next(iter(read_json(results[-1])["results"].values()))
    lines = sorted(folder.rglob("samples_*.jsonl"))[-1].read_text("utf-8").splitlines()
    return scores, sorted((json.loads(line) for line in lines), key=lambda row: row["doc_id"])


def likelihoods(answers: list[Any]) -> list[float]:
    """The log-likelihoods among the answers to one item."""
    return [float(answer[0]) for answer in answers]


def compare(name: str, ours: Path, hf: Path) -> dict[str, Any]:
    """One task: both scores, and how far single items are apart."""
    record = read_json(ours / "eval.json")
    scores, rows = theirs(hf)
    mine, items = record["results"][name], record["items"][name]
    if [item["item"] for item in items] != [row["doc_id"] for row in rows]:
        raise InputError(f"task '{name}': the two runs scored different items: use the same limit")
    apart = [
        abs(a - b)
        for item, row in zip(items, rows, strict=True)
        for a, b in zip(likelihoods(item["answers"]), likelihoods(row["filtered_resps"]), strict=True)
    ]
    shared = [metric for metric in SCORES if f"{metric},none" in scores]
    return {
        "items": len(items),
        "loopwise": {metric: mine[metric] for metric in shared},
        "lm_eval_hf": {metric: scores[f"{metric},none"] for metric in shared},
        "items_scored_differently": {
            metric: sum(item[metric] != row[metric] for item, row in zip(items, rows, strict=True))
            for metric in shared
            if metric != "perplexity"
        },
        "loglikelihoods": len(apart),
        "largest_difference": max(apart),
        "mean_depth": mine["mean_depth"],
        "flops_per_token": mine["flops_per_token"],
        "tokens": mine["tokens"],
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    first, second = steps.add_parser("tasks"), steps.add_parser("compare")
    first.add_argument("--data", type=Path, required=True)
    second.add_argument("work", type=Path)
    for step in (first, second):
        step.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.step == "tasks":
        return tasks(args.data, args.out)
    found = {name: args.work / "ours" / name for name in LOCAL if (args.work / "ours" / name / "eval.json").is_file()}
    rows = {name: compare(name, folder, args.work / "hf" / name) for name, folder in found.items()}
    runs = {name: read_json(folder / "manifest.json")["runs"]["eval"] for name, folder in found.items()}
    path = args.out / "lm_eval.json"
    before = read_json(path) if path.is_file() else {"tasks": {}, "manifests": {}}
    write_json(path, {"tasks": before["tasks"] | rows, "manifests": before["manifests"] | runs})
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
