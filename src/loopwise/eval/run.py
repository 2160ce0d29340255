"""Run lm-eval tasks on a checkpoint: scores, with mean depth and compute beside them."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lm_eval
import yaml
from lm_eval.tasks import TaskManager

from loopwise.config import InputError
from loopwise.eval.adapter import LoopwiseLM
from loopwise.records import file_sha256, sha256

LOCAL = {path.stem: path for path in sorted((Path(__file__).parent / "tasks").glob("*.yaml"))}


def _clean(text: str) -> str:
    """Remove the marks that HellaSwag's WikiHow half carries."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


def _hellaswag(doc: Mapping[str, Any]) -> dict[str, Any]:
    context = f"{doc['ctx_a']} {doc['ctx_b'].capitalize()}"
    return {
        "query": _clean(f"{doc['activity_label']}: {context}"),
        "choices": [_clean(ending) for ending in doc["endings"]],
        "gold": int(doc["label"]),
    }


PREPARE: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {"hellaswag": _hellaswag}


def local_task(name: str, data: Path | None) -> dict[str, Any]:
    """A task of ours as lm-eval takes it; its items are read from `data`. Raises `InputError` without them."""
    task = yaml.safe_load(LOCAL[name].read_text("utf-8"))
    file = task["metadata"].pop("file")
    if data is None or not (data / file).is_file():
        raise InputError(f"task '{name}' needs {file}: name its folder with --data")
    task["dataset_kwargs"] = {"data_files": {"test": str((data / file).resolve())}}
    if name in PREPARE:
        task["process_docs"] = lambda docs: docs.map(PREPARE[name])
    return task


def data_digest(tasks: list[str], data: Path | None) -> str:
    """sha256 over the files of the local tasks among `tasks` (lm-eval's own tasks have a version instead)."""
    files = [yaml.safe_load(LOCAL[name].read_text("utf-8"))["metadata"]["file"] for name in tasks if name in LOCAL]
    return sha256("".join(file_sha256(data / file) for file in files if data).encode())


def evaluate(
    model: Any,
    tasks: list[str],
    *,
    data: Path | None = None,
    limit: int | None = None,
    items: dict[str, list[dict[str, Any]]] | None = None,
) -> dict[str, dict[str, Any]]:
    """Scores per task. `model` is a `LoopwiseLM` (then also mean depth, FLOPs per token and tokens per task) or any
    other lm-eval model. Names not in `LOCAL` are lm-eval's own tasks. `items` receives what every item of a task got:
    its number, the model's answers (log-likelihoods or texts) and its scores."""
    found: dict[str, dict[str, Any]] = {}
    run: Any = lm_eval.simple_evaluate
    manager = TaskManager() if any(name not in LOCAL for name in tasks) else TaskManager(include_defaults=False)
    for name in tasks:
        if isinstance(model, LoopwiseLM):
            model.reset()
        task: Any = local_task(name, data) if name in LOCAL else name
        try:
            out = run(
                model,
                tasks=[task],
                limit=limit,
                bootstrap_iters=0,
                task_manager=manager,
                log_samples=items is not None,
                verbosity="ERROR",
            )
        except InputError:
            raise
        except (KeyError, ValueError) as error:
            raise InputError(f"task '{name}' cannot be run ({str(error)[:120]}): see lm-eval's task list") from None
        scores = next(iter(out["results"].values()))
        kept = {k: v for k, v in scores.items() if k.endswith(",none") and "stderr" not in k}
        found[name] = {k.removesuffix(",none"): v for k, v in kept.items()}
        found[name]["samples"] = next(iter(out["n-samples"].values()))["effective"]
        if isinstance(model, LoopwiseLM):
            found[name] |= _compute(model)
        if items is not None:
            items[name] = [_item(row) for row in next(iter(out["samples"].values()))]
    return found


def _item(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"item": row["doc_id"], "answers": row["filtered_resps"], **{m: row[m] for m in row["metrics"]}}


def _compute(model: LoopwiseLM) -> dict[str, float]:
    spent = model.spent
    mean = spent.passes / max(spent.tokens, 1)
    readouts = spent.readouts / max(spent.tokens, 1)
    return {
        "mean_depth": mean,
        "tokens": spent.tokens,
        "flops_per_token": model.cost.flops(mean, readouts=readouts),
    }
