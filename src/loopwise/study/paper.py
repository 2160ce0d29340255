"""LaTeX-ready tables: plain `tabular` with booktabs rules, one file each."""

from collections.abc import Sequence

from loopwise.report.figure import Cell, show
from loopwise.study.section import Table
from loopwise.study.verdict import Verdict

SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "−": "$-$", "–": "--",
    "‖": r"$\|$", "×": r"$\times$",
}  # fmt: skip


def escape(text: str) -> str:
    """Text as LaTeX takes it."""
    return "".join(SPECIAL.get(c, c) for c in text)


def latex(table: Table) -> str:
    """A `table` environment; intervals stand in small print behind their value."""
    columns = "".join("l" if i == 0 or i in table.words else "r" for i in range(len(table.header)))
    lines = [r"\begin{table}", r"\centering\small", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines += [" & ".join(escape(name) for name in table.header) + r" \\", r"\midrule"]
    lines += [" & ".join(_cell(cell) for cell in row) + r" \\" for row in table.rows]
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{escape(table.caption)}}}", rf"\label{{tab:{table.name}}}"]
    return "\n".join([*lines, r"\end{table}", ""])


def _cell(cell: Cell) -> str:
    first, _, rest = show(cell).partition("\n")
    return escape(first) + (rf" {{\scriptsize [{escape(rest.replace(' to ', ', '))}]}}" if rest else "")


def verdict_table(found: Sequence[Verdict]) -> Table:
    """Study, ours, verdict."""
    rows = [[v.quantity, v.study, v.ours, v.verdict] for v in found]
    return Table("verdicts", "The study, ours, verdict.", ("quantity", "the study", "ours", "verdict"), rows, (1, 2, 3))
