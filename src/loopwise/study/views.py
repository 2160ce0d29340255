"""The sections of the report, in order."""

from collections.abc import Callable

from loopwise.study.book import Book
from loopwise.study.published import Published
from loopwise.study.section import Section
from loopwise.study.views_depth import depth
from loopwise.study.views_live import ceiling, efficiency, reading
from loopwise.study.views_loss import dynamics, elasticity
from loopwise.study.views_policy import allocation

SECTIONS: dict[str, Callable[[Book, Published], Section]] = {
    "elasticity": elasticity,
    "dynamics": dynamics,
    "depth": depth,
    "allocation": allocation,
    "reading": reading,
    "efficiency": efficiency,
    "ceiling": ceiling,
}
