"""Foreign checkpoints in and out: `from_foreign` writes a native folder, `to_foreign` gives back every tensor.

Tensors stream one at a time and keep their stored dtype. The native folder gets `source.json` (family, original config,
what every original tensor was) and, if some tensors play no part in any computation, `source.safetensors` with them.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loopwise.checkpoint import gguf
from loopwise.checkpoint.families import FAMILIES, Entry, Family
from loopwise.checkpoint.native import Checkpoint, build, expected_shapes, fetch, replace_folder
from loopwise.checkpoint.settings import check_kinds
from loopwise.checkpoint.tensors import CODES, DTYPES, Facts, Folder, Held, Renamed, Tensors, write_shards, write_stream
from loopwise.checkpoint.transforms import TRANSFORMS
from loopwise.config import InputError, ModelConfig
from loopwise.model.layers import Rotary
from loopwise.model.recurrent import RecurrentLM
from loopwise.records import read_json, write_json

COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "added_tokens.json",
)
SOURCE, KEPT = "source.json", "source.safetensors"
COMPILED = "_orig_mod."  # torch.compile puts this before every name of a state dict
MAX_LISTED = 5


class Plan(NamedTuple):
    """A foreign checkpoint understood but not yet read.

    `entries` make our tensors, `twins` are tensors of theirs that repeat another one, `carried` those that no
    computation uses; `unmapped` are theirs that nothing accounts for and `missing` those that we need. `export`
    replaces what `source.json` says (None: the checkpoint's own description; empty: it cannot be exported back).
    """

    name: str
    config: ModelConfig
    foreign: Mapping[str, Any]
    tensors: Tensors
    entries: list[Entry]
    twins: dict[str, str]
    carried: list[str]
    unmapped: list[str]
    missing: list[str]
    export: Mapping[str, Any] | None = None

    @property
    def params(self) -> int:
        """Parameters of the native model."""
        return sum(shape.numel() for shape in expected_shapes(self.config).values())


def detect(foreign: Mapping[str, Any], names: Mapping[str, Facts]) -> tuple[str, Family]:
    """The family of a checkpoint; raises `InputError` if none fits."""
    for name, family in FAMILIES.items():
        if family.matches(foreign, names):
            return name, family
    kind = foreign.get("model_type") or foreign.get("architectures") or sorted(foreign)[:8]
    raise InputError(f"checkpoint of type {kind!r} is of no known family: known are {', '.join(FAMILIES)}")


def make_plan(foreign: Mapping[str, Any], tensors: Tensors) -> Plan:
    """Recognise the family, map the configuration and account for every key; reads no tensor."""
    if tensors.facts and all(name.startswith(COMPILED) for name in tensors.facts):
        tensors = Renamed(tensors, {name.removeprefix(COMPILED): name for name in tensors.facts})
    check_kinds(foreign)
    name, family = detect(foreign, tensors.facts)
    tensors = family.embedding_named(foreign, tensors)
    config = family.build(foreign, tensors.facts)
    shapes, names = expected_shapes(config), tensors.facts.keys()
    entries = [entry for entry in family.entries(config) if entry.target in shapes]
    used = {source for entry in entries for source in entry.sources}
    twins = {twin: of for twin, of in family.twins.items() if twin in names - used and of in names}
    rest = sorted(names - used - twins.keys())
    carried = [key for key in rest if family.carried(key, config)]
    orphans = sorted(shapes.keys() - {entry.target for entry in entries})
    missing = sorted(used - names) + [f"(ours) {target}" for target in orphans]
    return Plan(name, config, foreign, tensors, entries, twins, carried, sorted(set(rest) - set(carried)), missing)


class Opened(NamedTuple):
    """A foreign checkpoint: its plan and where its tokenizer files lie."""

    plan: Plan
    companions: Path | None


def open_foreign(name: str) -> Opened:
    """Find a foreign checkpoint and plan its import. `name` is a folder, a hub id, a GGUF file, a folder with one GGUF
    file and no safetensors, or `package:NAME` for weights that an installed package brings."""
    folder = find(name)
    if folder.suffix == ".gguf":
        foreign, tensors = gguf.load(folder)
        return Opened(make_plan(foreign, Held(tensors)), folder)
    return Opened(make_plan(read_config(folder), Folder(folder)), folder)


def read_config(folder: Path) -> Mapping[str, Any]:
    """config.json, or the only `meta_*.json` of a looped_nanochat folder."""
    path, others = folder / "config.json", sorted(folder.glob("meta_*.json"))
    path = others[0] if len(others) == 1 and not path.is_file() else path
    found = read_json(path)
    if not isinstance(found, dict):
        raise InputError(f"{path}: holds a {type(found).__name__}, not an object: restore the file")
    return found


def find(name: str) -> Path:
    """The folder or GGUF file that `name` stands for (see `open_foreign`); raises `InputError`."""
    package = name.removeprefix("package:")
    path = Path(name).expanduser() if package == name else gguf.package_folder(package)
    if path.is_dir():
        files = [] if (path / "config.json").is_file() else sorted(path.glob("*.gguf"))
        if len(files) > 1:
            raise InputError(f"source '{name}' holds {len(files)} GGUF files: name one of them")
        return files[0] if files else path
    if path.is_file() and path.suffix == ".gguf":
        return path
    if name.count("/") == 1 and not path.exists() and not name.startswith((".", "/", "~")):
        return fetch(name)
    raise InputError(f"source '{name}' is no checkpoint: give a folder with config.json and weights, or a .gguf file")


def check(plan: Plan) -> None:
    """Refuse a plan with keys left over or missing, listing them."""
    for what, keys, why in (
        ("unmapped", plan.unmapped, "they would be lost"),
        ("missing", plan.missing, "the checkpoint is incomplete"),
    ):
        if keys:
            more = f" and {len(keys) - MAX_LISTED} more" if len(keys) > MAX_LISTED else ""
            raise InputError(
                f"{plan.name} checkpoint: {len(keys)} {what} tensors ({why}): {', '.join(keys[:MAX_LISTED])}{more}: "
                "check that config.json and the weights belong together"
            )


def from_foreign(plan: Plan, out: Path, *, companions: Path | None = None) -> Path:
    """Write the native folder `out` (complete or not at all). `companions` is where tokenizer files lie.

    Raises `InputError` for unmapped, missing or misshapen tensors, tied weights that differ, and rotary tables that
    contradict the configuration.
    """
    check(plan)
    shapes = expected_shapes(plan.config)
    facts = {e.target: Facts(tuple(shapes[e.target]), _dtype(plan, e), "model.safetensors") for e in plan.entries}
    temporary = out.with_name(f".{out.name}.writing")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    write_stream(temporary / "model.safetensors", facts, _joined(plan, shapes))
    _check_twins(plan)
    kept = _kept(plan)
    if kept:
        write_stream(
            temporary / KEPT, {n: Facts(tuple(t.shape), CODES[t.dtype], KEPT) for n, t in kept.items()}, kept.items()
        )
    write_json(temporary / "config.json", plan.config.to_dict())
    description = _describe(plan) if plan.export is None else plan.export
    if description:
        write_json(temporary / SOURCE, description)
    copy_companions(companions, temporary)
    return replace_folder(temporary, out)


def materialise(plan: Plan) -> RecurrentLM:
    """The planned model in memory, fp32, in evaluation mode; nothing is written."""
    check(plan)
    state = {name: tensor.float() for name, tensor in _joined(plan, expected_shapes(plan.config))}
    return build(plan.config, state)


def stored_dtype(plan: Plan, target: str) -> str:
    """Dtype code that our tensor `target` is stored in."""
    return next(_dtype(plan, entry) for entry in plan.entries if entry.target == target)


def _dtype(plan: Plan, entry: Entry) -> str:
    """The dtype our tensor is stored in: theirs, or the wider one where parts differ."""
    found = {DTYPES[plan.tensors.facts[source].dtype] for source in entry.sources}
    wide = found.pop()
    for other in found:
        wide = torch.promote_types(wide, other)
    if not wide.is_floating_point:
        raise InputError(f"tensor '{entry.sources[0]}' has dtype {wide}: only float weights can be imported")
    return CODES[wide]


def _joined(plan: Plan, shapes: Mapping[str, torch.Size]) -> Iterator[tuple[str, Tensor]]:
    for entry in plan.entries:
        dtype = DTYPES[_dtype(plan, entry)]
        parts = [plan.tensors.read(source).to(dtype) for source in entry.sources]
        try:
            made = TRANSFORMS[entry.transform].join(parts, plan.config)
        except RuntimeError as error:  # torch's word for shapes that do not fit together
            raise InputError(f"tensors {entry.sources} do not fit config.json ({error}): check them") from None
        if made.shape != shapes[entry.target]:
            raise InputError(
                f"tensor '{entry.sources[0]}' gives shape {list(made.shape)}, config.json says "
                f"{list(shapes[entry.target])}: check that they belong together"
            )
        yield entry.target, made


def _check_twins(plan: Plan) -> None:
    for twin, of in plan.twins.items():
        if not torch.equal(plan.tensors.read(twin), plan.tensors.read(of)):
            raise InputError(f"tensors '{twin}' and '{of}' differ although config.json ties them: mend the checkpoint")


def _kept(plan: Plan) -> dict[str, Tensor]:
    """What goes into `source.safetensors`: carried tensors, and rows of a padded vocabulary."""
    found = {name: plan.tensors.read(name) for name in plan.carried}
    if "freqs_cis" in found:
        _check_rope(plan.config, found["freqs_cis"])
    for entry in plan.entries:
        if entry.transform == "first_rows":
            rest = plan.tensors.read(entry.sources[0])[plan.config.vocab_size :]
            found |= {entry.sources[0]: rest} if len(rest) else {}
    return found


def _check_rope(config: ModelConfig, stored: Tensor) -> None:
    """A stored rotary table `[1, positions, 1, half, 2]` must say what the configuration says (to fp32 angles)."""
    table = stored[0, :, 0].movedim(-1, 0).float()
    ours = Rotary(config)
    ours.reserve(table.shape[1])
    size = ours.table[:, : table.shape[1]].shape
    error = (ours.table[:, : table.shape[1]] - table).abs().max() if size == table.shape else torch.inf
    if error > (2e-3 if stored.dtype == torch.float32 else 2e-2):
        raise InputError("tensor 'freqs_cis' contradicts the rotary settings of config.json: correct rope_base")


def _describe(plan: Plan) -> dict[str, Any]:
    return {
        "family": plan.name,
        "config": plan.foreign,
        "tensors": {name: [list(f.shape), f.dtype, f.file] for name, f in plan.tensors.facts.items()},
        "twins": plan.twins,
        "carried": plan.carried,
        "names": plan.tensors.names if isinstance(plan.tensors, Renamed) else {},
    }


def copy_companions(source: Path | None, target: Path) -> None:
    """Copy tokenizer and generation files that lie beside weights (or are inside a GGUF file)."""
    if source and source.suffix == ".gguf":
        gguf.write_tokenizer(source, target)
        return
    for name in COMPANIONS if source else ():
        if source and (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def to_foreign(checkpoint: Checkpoint, out: Path) -> Path:
    """Write an imported checkpoint in its original format: same names, shapes, dtypes, files and config.

    Raises `InputError` if the checkpoint was not imported.
    """
    if not (checkpoint.folder / SOURCE).is_file():
        raise InputError(f"{checkpoint.name} was not imported (no {SOURCE}): use --format hf")
    source = read_json(checkpoint.folder / SOURCE)
    facts = {name: Facts(tuple(shape), dtype, file) for name, (shape, dtype, file) in source["tensors"].items()}
    native = Folder(checkpoint.folder)
    kept = Kept(checkpoint.folder)
    made = {
        name: entry
        for entry in FAMILIES[source["family"]].entries(checkpoint.config)
        for name in entry.sources
        if entry.target in native.facts
    }

    def read(name: str) -> Tensor:
        name = source["twins"].get(name, name)
        if name in source["carried"]:
            return kept.read(name)
        return _split(native, kept, made[name], name, facts, checkpoint.config).to(DTYPES[facts[name].dtype])

    temporary = out.with_name(f".{out.name}.writing")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    prefix = source.get("prefix", "")  # how earlier versions noted what `names` says
    ours = {source.get("names", {}).get(name, prefix + name): name for name in facts}
    write_shards(temporary, {of: facts[name] for of, name in ours.items()}, lambda of: read(ours[of]))
    (temporary / "config.json").write_text(json.dumps(source["config"], indent=2) + "\n", "utf-8")
    copy_companions(checkpoint.folder, temporary)
    return replace_folder(temporary, out)


class Kept:
    """`source.safetensors` of an imported checkpoint, which may be absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inside = Folder.of_file(folder, KEPT) if (folder / KEPT).is_file() else None

    def read(self, name: str) -> Tensor:
        """A carried tensor."""
        assert self.inside is not None
        return self.inside.read(name)

    def rest(self, name: str) -> Tensor | None:
        """Rows that were cut from a tensor, or None."""
        return self.inside.read(name) if self.inside and name in self.inside.facts else None


def _split(
    native: Tensors, kept: Kept, entry: Entry, name: str, facts: Mapping[str, Facts], config: ModelConfig
) -> Tensor:
    rows = [facts[source].shape[0] for source in entry.sources]
    part = TRANSFORMS[entry.transform].split(native.read(entry.target), rows, config)[entry.sources.index(name)]
    rest = kept.rest(name) if entry.transform == "first_rows" else None
    return part if rest is None else torch.cat([part, rest.to(part.dtype)])
