"""Model configuration: one frozen dataclass that describes Loopwise models and imported families alike."""

import dataclasses
import difflib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

Norm = Literal["pre", "sandwich", "post", "residual"]
Injection = Literal["concat", "add", "diagonal", "ssm", "none"]
StateInit = Literal["zero", "embed", "normal"]
Rope = Literal["half", "adjacent"]
RopeDtype = Literal["float64", "float32", "bfloat16"]
RopeScaling = Literal["none", "linear", "llama3"]
QKNorm = Literal["none", "head", "full", "rotated"]
Mlp = Literal["swiglu", "relu2", "half_relu2"]


class InputError(ValueError):
    """Bad input from the user: the message is one line that names the field, the value and the remedy."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Say which valid names exist and, if one is close to `name`, which was probably meant."""
    valid = sorted(valid)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return f"{hint}valid: {', '.join(valid)}"


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape and wiring of a `RecurrentLM`.

    `norm` places RMSNorm around each sublayer f: `pre` x + f(n(x)); `sandwich` x + n(f(n(x))); `post` x + n(f(x));
    `residual` n(x + f(n(x))) (the norm acts on the residual sum, as in Huginn).
    `injection` combines state s and prelude output e at the start of each pass: `concat` W[s; e], `add` s + e,
    `diagonal` a*s + b*e with learned per-channel a in (0, 1), `ssm` the discretised form of it with a full input
    matrix (Parcae, see `Injection`), `none` s alone (Ouro).

    The fields after `mean_depth` exist for imported families; their defaults change nothing. `rope_dtype` is the
    precision of the rotary angles: exact, fp32 throughout, or fp32 with the table rounded to bf16. `rope_scaling`
    stretches them by `rope_factor` (`llama3`: only wavelengths above `rope_original` / `rope_low` positions, blending
    down to `rope_original` / `rope_high`). `qk_norm` `rotated` is per head, without weights, after the rotation.
    `final_norm` is the norm before the head, `coda_norm` applies the same weights before the coda too,
    `coda_projection` multiplies the state by a matrix there. `value_layers` are the layers (counted prelude, core,
    coda) that add a gated per-token embedding to their values; the gate reads the first `value_gate` channels.
    `windows` is the number of most recent positions each layer sees, itself included (0: all; empty: all everywhere).
    """

    vocab_size: int
    d_model: int
    num_heads: int
    d_ff: int
    prelude_layers: int
    core_layers: int
    coda_layers: int
    context: int
    family: str = "loopwise"
    num_kv_heads: int | None = None
    head_dim: int | None = None
    norm: Norm = "sandwich"
    norm_eps: float = 1e-6
    rope: Rope = "half"
    rope_theta: float = 10_000.0
    qk_norm: QKNorm = "none"
    attention_bias: bool = False
    mlp: Mlp = "swiglu"
    embed_scale: float = 1.0
    injection: Injection = "concat"
    state_init: StateInit = "zero"
    state_std: float = 1.0
    state_seed: int = 0
    state_norm: bool = False
    prelude_norm: bool = False
    tied: bool = True
    max_depth: int = 32
    mean_depth: float = 8.0
    rope_dtype: RopeDtype = "float64"
    rope_scaling: RopeScaling = "none"
    rope_factor: float = 1.0
    rope_low: float = 1.0
    rope_high: float = 4.0
    rope_original: int = 8192
    qk_norm_eps: float | None = None
    core_d_ff: int | None = None
    embed_norm: bool = False
    final_norm: bool = True
    coda_norm: bool = False
    coda_projection: bool = False
    exit_gate: bool = False
    logit_softcap: float | None = None
    value_layers: tuple[int, ...] = ()
    value_gate: int = 32
    windows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "num_heads", "d_ff", "core_layers", "context", "max_depth"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "use an integer of at least 1")
        for name in ("prelude_layers", "coda_layers"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "use an integer of at least 0")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise InputError(f"config field '{name}' is {value!r}: {nearest(str(value), choices)}")
        _require(self.num_heads % self.kv_heads == 0, "num_kv_heads", self.kv_heads, "it must divide num_heads")
        if self.head_dim is None:
            _require(self.d_model % self.num_heads == 0, "d_model", self.d_model, "make it a multiple of num_heads")
        _require(self.width >= 2 and self.width % 2 == 0, "head_dim", self.width, "use an even width")
        _require(self.mean_depth >= 1, "mean_depth", self.mean_depth, "use at least 1")
        _require(math.isfinite(self.norm_eps) and self.norm_eps > 0, "norm_eps", self.norm_eps, "use a small positive")
        for name in ("value_layers", "windows"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # JSON has lists
        _require(len(self.windows) in (0, self.num_layers), "windows", self.windows, "use one number per layer")
        _require(
            all(0 <= i < self.num_layers for i in self.value_layers),
            "value_layers",
            self.value_layers,
            "use layer numbers below prelude + core + coda layers",
        )
        _require(self.final_norm or not self.coda_norm, "coda_norm", self.coda_norm, "it needs final_norm")

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads (grouped-query attention when fewer than `num_heads`)."""
        return self.num_kv_heads or self.num_heads

    @property
    def width(self) -> int:
        """Width of one attention head."""
        return self.head_dim or self.d_model // self.num_heads

    @property
    def num_layers(self) -> int:
        """Blocks that own weights: prelude + core + coda."""
        return self.prelude_layers + self.core_layers + self.coda_layers

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready dictionary."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "config") -> "ModelConfig":
        """Build from a dictionary; unknown and missing keys raise `InputError` naming the key and the nearest field."""
        fields = {f.name: f for f in dataclasses.fields(cls)}
        for key in values:
            if key not in fields:
                raise InputError(f"{source}: unknown key '{key}': {nearest(key, fields)}")
        missing = [n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in values]
        if missing:
            raise InputError(f"{source}: missing key '{missing[0]}': add it")
        for key, value in values.items():
            _check_type(source, key, value, fields[key].type)
        ready: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        return cls(**ready)

    @classmethod
    def load(cls, path: Path) -> "ModelConfig":
        """Read `config.json`; unreadable or malformed files raise `InputError`."""
        try:
            values = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise InputError(f"{path}: no such file: give a folder that holds config.json") from None
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise InputError(f"{path}: cannot be read as JSON ({error}): restore the file") from None
        if not isinstance(values, dict):
            raise InputError(f"{path}: holds a {type(values).__name__}, not an object: restore the file")
        return cls.from_dict(values, source=str(path))


_CHOICES: dict[str, tuple[str, ...]] = {
    "norm": get_args(Norm),
    "injection": get_args(Injection),
    "state_init": get_args(StateInit),
    "rope": get_args(Rope),
    "rope_dtype": get_args(RopeDtype),
    "rope_scaling": get_args(RopeScaling),
    "qk_norm": get_args(QKNorm),
    "mlp": get_args(Mlp),
}


def _require(ok: bool, name: str, value: object, remedy: str) -> None:
    if not ok:
        raise InputError(f"config field '{name}' is {value!r}: {remedy}")


def _check_type(source: str, key: str, value: object, annotation: Any) -> None:
    if annotation in (int, float, bool, str):
        accepted: tuple[type, ...] = (int, float) if annotation is float else (annotation,)
        if not isinstance(value, accepted) or (isinstance(value, bool) and annotation is not bool):
            raise InputError(f"{source}: key '{key}' is {value!r}: use a value of type {annotation.__name__}")
    elif annotation in _OPTIONAL and not (value is None or type(value) in _OPTIONAL[annotation]):
        wanted = "an integer" if annotation == int | None else "a number"
        raise InputError(f"{source}: key '{key}' is {value!r}: use {wanted} or null")
    elif annotation == tuple[int, ...] and not (isinstance(value, list | tuple) and all(type(v) is int for v in value)):
        raise InputError(f"{source}: key '{key}' is {value!r}: use a list of integers")


_OPTIONAL: dict[Any, tuple[type, ...]] = {int | None: (int,), float | None: (int, float)}
