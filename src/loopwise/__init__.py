"""Loopwise: train, measure, allocate and serve depth-recurrent language models."""

import importlib
from typing import Any

_EXPORTS = {
    "InputError": "loopwise.config",
    "ModelConfig": "loopwise.config",
    "RecurrentLM": "loopwise.model.recurrent",
    "Cost": "loopwise.model.cost",
    "Policy": "loopwise.exit.policy",
    "SamplingParams": "loopwise.sampling",
    "Decoder": "loopwise.generate",  # its function `generate` shares the module's name: import it from there
    "open_checkpoint": "loopwise.checkpoint.native",
    "LLM": "loopwise.engine.llm",
    "Tokenizer": "loopwise.data.tokenizer",
}
__all__ = list(_EXPORTS)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `loopwise --help` starts at once."""
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'loopwise' has no attribute '{name}'")
