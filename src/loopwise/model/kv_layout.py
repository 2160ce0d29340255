"""KV layouts: which plane of a position's core KV a query reads. The only file with 0-based plane indices; torch-free.

A *plane* holds the keys and values that one core pass wrote for one position (all core layers). Depth is 1-based
everywhere else; plane p holds what depth p + 1 wrote.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from loopwise.config import InputError, nearest


class KVLayout(NamedTuple):
    """How planes are written and read.

    `write(i)` is the plane that a row at depth i writes. `read(i, d)` is the plane that a query at depth i reads for a
    position whose deepest pass so far is d. Both accept ints, numpy arrays or tensors (only arithmetic is used).
    `num_planes(max_depth)` is how many planes a position may need; `kept(d)` how many stay once it left at depth d.
    `exact` says whether results are independent of how a prompt is cut into chunks.
    """

    name: str
    write: Callable[[Any], Any]
    read: Callable[[Any, Any], Any]
    num_planes: Callable[[int], int]
    kept: Callable[[float, int], float]
    exact: bool


def _smaller(i: Any, d: Any) -> Any:
    """Elementwise min(i, d) for ints, numpy arrays and tensors alike."""
    if isinstance(i, int) and isinstance(d, int):
        return min(i, d)
    return i - (i - d) * (i > d)


LAYOUTS: dict[str, KVLayout] = {
    "depth_indexed": KVLayout(
        "depth_indexed", lambda i: i - 1, lambda i, d: _smaller(i, d) - 1, lambda m: m, lambda d, m: m, True
    ),
    "last_exited": KVLayout(
        "last_exited", lambda i: i - 1, lambda i, d: _smaller(i, d) - 1, lambda m: m, lambda d, m: d, True
    ),
    "shared": KVLayout("shared", lambda i: i * 0, lambda i, d: (i + d) * 0, lambda m: 1, lambda d, m: 1, False),
    "first_then_shared": KVLayout(
        "first_then_shared",
        lambda i: _smaller(i - 1, 1),
        lambda i, d: _smaller(_smaller(i, d) - 1, 1),
        lambda m: min(m, 2),
        lambda d, m: min(m, 2),
        False,
    ),
}


def kv_layout(name: str) -> KVLayout:
    """Look a layout up by name; an unknown name raises `InputError` with the nearest valid one."""
    if name not in LAYOUTS:
        raise InputError(f"kv layout '{name}' is unknown: {nearest(name, LAYOUTS)}")
    return LAYOUTS[name]
