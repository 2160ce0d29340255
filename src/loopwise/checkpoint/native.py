"""Native checkpoints: a folder with `config.json`, `model.safetensors`, `tokenizer.json` and optional extras.

`tiny` names the embedded one; a path names any other; `org/name` is fetched from the hub (needs the `hf` extra).
Only safetensors are read and nothing from a checkpoint is ever executed.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from loopwise.config import InputError, ModelConfig, nearest
from loopwise.exit.look import A2, FACTORS, RANK, Probe
from loopwise.exit.tiers import Tier, choose_tier, parse_tiers
from loopwise.model.recurrent import RecurrentLM
from loopwise.records import file_sha256, read_json, sync_folder, write_json

ASSETS = Path(__file__).parents[1] / "assets"
EMBEDDED = ("tiny", "tiny-mean4")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint on disk: its name, folder and config. Weights are read on demand."""

    name: str
    folder: Path
    config: ModelConfig

    @property
    def tokenizer_path(self) -> Path:
        """Path of `tokenizer.json`; a missing file raises `InputError`."""
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise InputError(f"{path}: no such file: put the model's tokenizer there")
        return path

    @cached_property
    def digest(self) -> str:
        """sha256 of the weights file."""
        return file_sha256(self.folder / "model.safetensors")

    @property
    def tiers(self) -> dict[str, Any] | None:
        """Contents of `tiers.json`, or None; a damaged file raises `InputError`."""
        path = self.folder / "tiers.json"
        if not path.is_file():
            return None
        found = read_json(path)
        parse_tiers(found, str(path))
        return found

    def tier(self, name: str) -> Tier:
        """A tier of the checkpoint; without such a tier, or without any, raises `InputError`."""
        found = self.tiers
        if found is None:
            raise InputError(f"tier '{name}': {self.name} has no tiers.json: run loopwise calibrate, or use --policy")
        return choose_tier(parse_tiers(found, "tiers.json"), name)

    def model(self, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> RecurrentLM:
        """Build the model and load its weights, in evaluation mode. Missing, unknown or misshapen tensors raise
        `InputError` naming the tensor."""
        return load_model(self.folder / "model.safetensors", self.config, dtype=dtype, device=device)

    def probe(self) -> Probe | None:
        """Fitted tensors that some exit signals need, if the checkpoint has any; unknown names raise `InputError`."""
        path = self.folder / "probe.safetensors"
        if not path.is_file():
            return None
        found = _read(path)
        unknown = sorted(found.keys() - set(Probe._fields))
        if unknown:
            raise InputError(f"{path}: tensor '{unknown[0]}' is unknown: {nearest(unknown[0], Probe._fields)}")
        probe = Probe(**found)
        lacking = probe.lacks(A2) if found.keys() & set(A2) else []
        if lacking:
            raise InputError(f"{path}: tensor '{lacking[0]}' is missing: write the probe again")
        for name, tensor in found.items():
            rows = tensor.shape[0] if name in FACTORS else RANK
            if rows != RANK or (name not in ("bias", "distil_terms") and tensor.shape[-1] != self.config.d_model):
                raise InputError(f"{path}: tensor '{name}' has shape {list(tensor.shape)}: fit it for this checkpoint")
        return probe


def open_checkpoint(name: str) -> Checkpoint:
    """Find a checkpoint by embedded name, path or hub id; raises `InputError` if there is none or it is damaged."""
    folder = _find(name)
    if not (folder / "model.safetensors").is_file():
        raise InputError(f"{folder / 'model.safetensors'}: no such file: the checkpoint is incomplete, copy it again")
    label = name if name in EMBEDDED else folder.resolve().name
    return Checkpoint(name=label, folder=folder, config=ModelConfig.load(folder / "config.json"))


def _find(name: str) -> Path:
    if name in EMBEDDED and (ASSETS / name).is_dir():
        return ASSETS / name
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise InputError(f"checkpoint '{name}' is a file: give the folder that holds config.json and model.safetensors")
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return fetch(name)
    known = ", ".join(n for n in EMBEDDED if (ASSETS / n).is_dir())
    raise InputError(f"checkpoint '{name}' does not exist: give a folder, a hub id org/name, or one of: {known}")


def fetch(name: str) -> Path:
    """Download a checkpoint from the hub (weights, configuration, tokenizer; never code); raises `InputError`."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(f"checkpoint '{name}' is no folder, and hub ids need the 'hf' extra: install it") from None
    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "README.md", "*.jinja"]))
    except Exception as error:  # the hub raises many kinds: not found, offline, forbidden
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"checkpoint '{name}' cannot be had from the hub ({reason}): give a local folder") from None


def load_model(path: Path, config: ModelConfig, *, dtype: torch.dtype, device: torch.device | str) -> RecurrentLM:
    """Read `path` into a new model; see `Checkpoint.model`."""
    with torch.device("meta"):
        model = RecurrentLM(config)
    found = _read(path)
    expected = _expected(model)
    for kind, names in (("missing", expected.keys() - found.keys()), ("unknown", found.keys() - expected.keys())):
        if names:
            raise InputError(f"{path}: tensor '{min(names)}' is {kind}: config.json and the weights do not match")
    for key, tensor in found.items():
        if tensor.shape != expected[key].shape:
            shapes = f"{list(tensor.shape)}, not {list(expected[key].shape)}"
            raise InputError(f"{path}: tensor '{key}' has shape {shapes}: config.json and the weights do not match")
        if not tensor.is_floating_point():
            raise InputError(f"{path}: tensor '{key}' has dtype {tensor.dtype}: store weights as float32, bf16 or fp16")
    return build(config, {key: tensor.to(device=device, dtype=dtype) for key, tensor in found.items()}, device=device)


def build(config: ModelConfig, state: dict[str, Tensor], *, device: torch.device | str = "cpu") -> RecurrentLM:
    """A model in evaluation mode that holds exactly these tensors (the tied head is not among them)."""
    with torch.device("meta"):
        model = RecurrentLM(config)
    if config.tied:
        state["head.weight"] = state["embedding.weight"]
    model.load_state_dict(state, assign=True)
    if config.tied:
        model.head.weight = model.embedding.weight
    model.rotary.rebuild(device)
    return model.eval().requires_grad_(False)


def _expected(model: RecurrentLM) -> dict[str, Tensor]:
    """Tensors a file must hold: all but the tied head, which is stored once."""
    state = dict(model.state_dict())
    if model.config.tied:
        del state["head.weight"]
    return state


def expected_shapes(config: ModelConfig) -> dict[str, torch.Size]:
    """Names and shapes of the tensors in a native weights file of this configuration."""
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in _expected(RecurrentLM(config)).items()}


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file: the checkpoint is incomplete, copy it again") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path}: is truncated or no safetensors file ({error}): copy it again") from None


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: is truncated or no safetensors file ({error}): copy it again") from None


def save(
    folder: Path,
    model: RecurrentLM,
    *,
    tokenizer: Path | None = None,
    manifest: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Write a checkpoint folder; `folder` appears complete or not at all (an older one is replaced)."""
    temporary = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    tensors = {key: value.to(dtype).contiguous().cpu() for key, value in _expected(model).items()}
    save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
    (temporary / "model.safetensors").chmod(0o644)  # the library writes for the owner only
    write_json(temporary / "config.json", model.config.to_dict())
    if tokenizer:
        shutil.copyfile(tokenizer, temporary / "tokenizer.json")
    if manifest:
        write_json(temporary / "manifest.json", manifest)
    return replace_folder(temporary, folder)


def replace_folder(temporary: Path, folder: Path) -> Path:
    """Put a finished folder in the place of `folder`, which is replaced whole or not at all."""
    sync_folder(temporary)
    if folder.exists():
        retired = folder.with_name(f".{folder.name}.retired")
        shutil.rmtree(retired, ignore_errors=True)
        folder.rename(retired)
        temporary.rename(folder)
        shutil.rmtree(retired)
    else:
        temporary.rename(folder)
    sync_folder(folder.parent)
    return folder
