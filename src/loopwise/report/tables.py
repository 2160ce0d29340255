"""Tables of the page: convergence by token type, and what each policy costs."""

from collections.abc import Sequence

from loopwise.report.figure import Cell, table
from loopwise.report.run import Allocation, Measure, Policy
from loopwise.report.svg import el, escape
from loopwise.report.words import TYPE_NAMES, count, percent, spared


def type_table(measure: Measure) -> str:
    """Counts, share, median and mean convergence depth of each type with intervals."""
    rows: list[list[Cell]] = [
        [
            TYPE_NAMES.get(t.name, t.name),
            t.count,
            percent(t.share, 1) + _ends(t.share_ci, lambda v: percent(v, 1)),
            f"{t.median:g}" + _ends(t.median_ci, lambda v: f"{v:g}"),
            None if t.mean is None else f"{t.mean:.2f}" + _ends(t.mean_ci, lambda v: f"{v:.2f}"),
        ]
        for t in measure.types
    ]
    settled = measure.convergence
    if settled:
        mean = None if settled.mean is None else f"{settled.mean:.2f}"
        rows.append(["all", measure.tokens, "100%", f"{settled.median:g}", mean])
    caption = (
        "Convergence depth of the output by token type. Small print: 95% intervals, bootstrap over "
        f"{count(measure.groups, measure.unit)}."
    )
    body = table(("type", "tokens", "share", "median", "mean"), rows, caption=caption)
    return body + _latent(measure)


def _latent(measure: Measure) -> str:
    out, latent = measure.convergence, measure.latent
    if not (out and latent):
        return ""
    text = (
        f"Output and state are different facts: the median output settles at depth {out.median:g} (KL below "
        f"{out.threshold:g}), the median "
        f"latent state at depth {latent.median:g} (relative change below {latent.threshold:g}); "
        f"{percent(out.censored or 0, 1)} of outputs and {percent(latent.censored or 0, 1)} of states still "
        "move at the last depth."
    )
    return el("p", escape(text), class_="note")


def _ends(ends: Sequence[float] | None, shown: object) -> str:
    assert callable(shown)
    return f"\n{shown(ends[0])} to {shown(ends[1])}" if ends else ""


def policy_table(found: Allocation) -> str:
    """Depth saved and compute saved, against the reference and against the best fixed depth."""
    best, header = found.best_fixed, ["policy", "mode", "mean depth", "depth saved", "compute saved"]
    header += [f"depth saved, best fixed ({best.depth})", f"compute saved, best fixed ({best.depth})"] if best else []
    rows = [_policy_row(p, found) for p in found.policies if p.signal != "depth"]
    rows.sort(key=lambda r: (not str(r[0]).startswith("A"), str(r[0]), str(r[1])))
    near = f"within {found.tolerance:g} nats of" if found.tolerance else "at"
    caption = (
        f"What each policy saves with a loss {near} that of uniform depth {found.reference_depth}: first "
        "against that depth, then "
        "against the best fixed depth. Depth counts passes; compute also counts every readout and check. Small "
        "print: 95% intervals, "
        f"bootstrap over {count(found.groups, found.unit)}. A dash: the policy never comes that close."
    )
    return table(header, rows, caption=caption)


def _policy_row(policy: Policy, found: Allocation) -> list[Cell]:
    m = policy.matched
    row: list[Cell] = [policy.label, policy.mode]
    if m is None:
        return row + [None] * (5 if found.best_fixed else 3)
    row += [f"{m.mean_depth:.2f}", _share(m.saving, m.saving_ci), _share(*spared(m.cost_ratio, m.cost_ratio_ci))]
    if found.best_fixed:
        row += [_share(m.saving_vs_best, m.saving_vs_best_ci), _share(*spared(m.cost_vs_best, m.cost_vs_best_ci))]
    return row


def _share(value: float | None, ends: Sequence[float] | None) -> str | None:
    return None if value is None else percent(value, 1) + _ends(ends, lambda v: percent(v, 1))


def bounds_note(found: Allocation) -> str:
    """Best fixed depth, oracle and KV layout in words."""
    parts, best = [], found.best_fixed
    if best:
        ends = f" (95% interval {best.depth_ci[0]:g} to {best.depth_ci[1]:g})" if best.depth_ci else ""
        cost = f", {best.cost_ratio:.2f} times the compute" if best.cost_ratio is not None else ""
        parts.append(f"Best fixed depth{ends}: {best.depth}, the smallest that comes as close{cost}.")
    if found.oracle:
        parts.append(
            "Oracle, which chooses each token's depth knowing the answer and is out of reach: "
            f"{found.oracle.mean_depth:.2f} passes."
        )
    if found.layout:
        parts.append(f"Keys and values in live decoding: {found.layout}.")
    return el("p", escape(" ".join(parts)), class_="note") if parts else ""
