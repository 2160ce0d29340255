"""Compare an imported model with the official outputs stored in a golden folder: every case, its largest error."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from loopwise.checkpoint.foreign import materialise, open_foreign
from loopwise.checkpoint.golden import huginn, looped, ouro
from loopwise.checkpoint.native import Checkpoint
from loopwise.checkpoint.retrofit import identity_adapter, retrofit
from loopwise.config import InputError, ModelConfig, nearest
from loopwise.model.recurrent import RecurrentLM
from loopwise.records import read_json

Stored = Mapping[str, Tensor]
WRONG = 1e30  # stands for infinity in JSON


def _retrofit(model: RecurrentLM, folder: Path, inputs: Stored, expected: Stored) -> Iterator[tuple[str, Tensor]]:
    """The converted model; the plain checkpoint it came from; our own conversion of that at depth 1; and the converted
    model with an adapter that lets the prelude through."""
    yield from looped.retrofit(model, inputs, expected)
    passing = identity_adapter(model)
    for depth in looped.depths(expected, "identity_adapter.logits"):
        yield f"identity_adapter.logits.r{depth}", passing(inputs["input_ids"], depth)
    if (folder / "source").is_dir():
        plan = open_foreign(str(folder / "source")).plan
        yield "source.logits", materialise(plan)(inputs["input_ids"], 1)
        picked = read_json(folder / "mapping.json")
        layers = [picked[f"{stage}_idx"] for stage in ("prelude", "core", "coda")]
        yield "source_pruned.logits", materialise(retrofit(plan, layers))(inputs["input_ids"], 1)


CASES: dict[str, Callable[[RecurrentLM, Path, Stored, Stored], Iterator[tuple[str, Tensor]]]] = {
    "huginn": lambda model, folder, inputs, expected: huginn.cases(model, inputs, expected),
    "ouro": lambda model, folder, inputs, expected: ouro.cases(
        model, read_json(folder / "config.json"), inputs, expected
    ),
    "retrofit-llama": _retrofit,
    "retrofit-olmo": _retrofit,
    "parcae": lambda model, folder, inputs, expected: looped.parcae(model, inputs, expected),
    "nanochat": lambda model, folder, inputs, expected: looped.nanochat(model, inputs, expected),
    "llama": lambda *given: _plain(*given),
    "olmo2": lambda *given: _plain(*given),
}


def verify(
    model: RecurrentLM, family: str, folder: Path, only: Callable[[str], bool] = lambda name: True
) -> dict[str, float]:
    """Largest absolute error of every stored case that `only` accepts (for token and step cases: of the integers;
    `WRONG` where shapes differ or one side has a number and the other NaN). Raises `InputError` if the folder holds no
    golden files, or a case that this version does not know."""
    inputs, expected = (_load(folder / f"{name}.safetensors") for name in ("inputs", "expected"))
    expected = {name: value for name, value in expected.items() if only(name) and _applies(name, model.config, family)}
    if family not in CASES:
        raise InputError(f"{folder}: there are no golden cases of family '{family}': {nearest(family, CASES)}")
    try:
        with torch.no_grad():
            found = {name: value for name, value in CASES[family](model, folder, inputs, expected) if name in expected}
    except KeyError as error:  # a case lacks its input, or the tensors that belong with it
        raise InputError(f"{folder}: tensor {error} is missing from the golden files: copy them again") from None
    unknown = sorted(expected.keys() - found.keys())
    if unknown or not expected:
        what = f"case '{unknown[0]}' is unknown for {family} ({len(unknown)} such)" if unknown else "no case applies"
        raise InputError(f"{folder}: {what}: give the checkpoint's own golden folder, or update Loopwise")
    ignore = huginn.unstable if family == "huginn" else lambda name, expected: None
    return {name: _error(found[name], expected[name], ignore(name, expected)) for name in sorted(found)}


def _applies(name: str, config: ModelConfig, family: str) -> bool:
    """Folders of retrofitted models also hold the outputs of the plain source and of its pruned stack."""
    if family not in ("llama", "olmo2"):
        return True
    others = ("zero.", "given.", "gen.")
    if config.max_depth == 1:
        return not name.startswith((*others, "source_pruned.", "identity_adapter."))
    return not name.startswith((*others, "source."))


PLAIN = re.compile(r"source(_pruned)?\.logits|identity_adapter\.logits\.r(\d+)")


def _plain(model: RecurrentLM, folder: Path, inputs: Stored, expected: Stored) -> Iterator[tuple[str, Tensor]]:
    """A plain checkpoint, or our retrofit of it: the stack once."""
    for case in filter(None, map(PLAIN.fullmatch, expected)):
        yield case[0], model(inputs["input_ids"], int(case[2] or 1))


def _load(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(f"{path}: no such file: give a golden folder (inputs and expected safetensors)")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: is truncated or no safetensors file ({error}): copy it again") from None


def _error(ours: Tensor, theirs: Tensor, ignore: Tensor | None) -> float:
    if ours.shape != theirs.shape:
        return WRONG
    difference = (ours.double() - theirs.double()).abs()
    both, one = ours.isnan() & theirs.isnan(), ours.isnan() != theirs.isnan()
    difference = difference.masked_fill(both, 0).masked_fill(one, WRONG)
    return float((difference if ignore is None else difference.masked_fill(ignore, 0)).max())


def golden_folder(folder: Path, family: str, source: Path) -> Path:
    """The folder of stored outputs meant by `--verify`: itself, or inside a parent folder the one whose checkpoint is
    the source's (by name, else by its configuration)."""
    if (folder / "expected.safetensors").is_file():
        return folder
    inside = sorted(path.parent for path in folder.glob("*/expected.safetensors")) if folder.is_dir() else []
    own = source.resolve()
    named = [path for path in inside if path.name in (own.name, own.parent.name)]
    same = [path for path in inside if source.is_dir() and _same_weights(path, source)]
    if not (named or same):
        raise InputError(f"{folder}: holds no golden files for this {family} checkpoint: give its own folder")
    return (same or named)[0]


def _same_weights(golden: Path, source: Path) -> bool:
    """Whether both folders hold the same config.json and weights of the same size."""
    files = [(path / "config.json", path / "model.safetensors") for path in (golden, source)]
    if not all(file.is_file() for pair in files for file in pair):
        return False
    (config, weights), (other, others) = files
    return read_json(config) == read_json(other) and weights.stat().st_size == others.stat().st_size


def by_dtype(checkpoint: Checkpoint, family: str, folder: Path) -> dict[str, float]:
    """Largest logit error of the uncached cases with the model in each dtype, against the fp32 official logits."""
    inputs, expected = (_load(folder / f"{name}.safetensors") for name in ("inputs", "expected"))
    plain = family in ("llama", "olmo2")
    for name in list(expected):
        if not _applies(name, checkpoint.config, family) or name.startswith("source") != plain:
            del expected[name]
    found: dict[str, float] = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model = checkpoint.model(dtype=dtype)
        with torch.no_grad():
            errors = [
                float((logits - expected[name]).abs().max()) for name, logits in _uncached(model, inputs, expected)
            ]
        found |= {str(dtype).removeprefix("torch."): max(errors)} if errors else {}
    return found


def _uncached(model: RecurrentLM, inputs: Stored, expected: Stored) -> Iterator[tuple[str, Tensor]]:
    """Logits of the stored whole-sequence runs."""
    for name in expected:
        match name.split("."):
            case ("zero" | "given" | "default" as kind, "logits", depth) if depth[1:].isdigit():
                state = {"zero": 0 * inputs["init_state"], "given": inputs["init_state"], "default": None}[kind]
                state = state if state is None else state.to(model.embedding.weight.dtype)
                yield name, model(inputs["input_ids"], int(depth[1:]), state=state)
            case ("logits", depth) if depth.startswith("ut"):
                yield name, model(inputs["input_ids"], int(depth[2:]))
            case ("source" | "source_pruned", "logits"):
                yield name, model(inputs["input_ids"], 1)
