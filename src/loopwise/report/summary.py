"""The short summary: key numbers and sentences, generated from the figures and true whatever they are."""

from collections.abc import Sequence
from typing import NamedTuple

from loopwise.report.run import Allocation, Measure, Policy
from loopwise.report.words import changed, count, near, percent, spared

FREE = ("rel_change", "accel", "cosine")  # signals of the state: no readout


class Tile(NamedTuple):
    """One key number: what it is, the figure, what to know about it, and whether it is good or bad news."""

    name: str
    value: str
    note: str
    mood: str = ""


def tiles(measure: Measure | None, allocation: Allocation | None) -> list[Tile]:
    """Key numbers, A1's depth and compute side by side first."""
    found: list[Tile] = []
    if allocation:
        a1, free = allocation.policy("kl"), best_free(allocation)
        found += _saved(a1, "A1 (KL exit)", allocation) if a1 else []
        found += _saved(free, f"{free.signal} (free signal)", allocation)[1:] if free else []
        if allocation.best_fixed:
            note = f"same for all tokens\n{near(allocation.tolerance)} depth {allocation.reference_depth}"
            found.append(Tile("best fixed depth", str(allocation.best_fixed.depth), note))
    if measure and measure.convergence:
        found += _settled(measure)
    return found


def _saved(policy: Policy, name: str, allocation: Allocation) -> list[Tile]:
    against, m = f"against depth {allocation.reference_depth}, {policy.mode}", policy.matched
    if m is None:
        lost = Tile(f"depth saved by {name}", "none", f"never comes near depth {allocation.reference_depth}")
        return [lost, Tile(f"compute saved by {name}", "none", against)]
    best = "" if m.saving_vs_best is None else f"\n{percent(m.saving_vs_best)} against best fixed"
    found = [
        Tile(
            f"depth saved by {name}", percent(m.saving), against + _ci(m.saving_ci) + best, _mood(m.saving, m.saving_ci)
        )
    ]
    compute, ends = spared(m.cost_ratio, m.cost_ratio_ci)
    if compute is not None:
        best = "" if m.cost_vs_best is None else f"\n{percent(1 - m.cost_vs_best)} against best fixed"
        note = f"checks included{_ci(ends)}{best}"
        found.append(Tile(f"compute saved by {name}", percent(compute), note, _mood(compute, ends)))
    return found


def _ci(ends: Sequence[float] | None) -> str:
    return f"\nCI {percent(ends[0])} to {percent(ends[1])}" if ends else ""


def _mood(saving: float, ends: Sequence[float] | None) -> str:
    """Good or bad news only where the interval leaves no doubt."""
    low, high = ends or (saving, saving)
    return "good" if low >= 0.005 else "bad" if high <= -0.005 else ""


def _settled(measure: Measure) -> list[Tile]:
    settled = measure.convergence
    assert settled is not None
    limit = f"KL below {settled.threshold:g} from there on"
    found = [Tile("median convergence depth", f"{settled.median:g}", limit)]
    mean = measure.mean_depth
    share = settled.share_after.get(round(mean)) if mean else None
    if share is not None:
        found.append(Tile("still moving at the training mean", percent(share), f"after depth {mean:g}"))
    return found


def best_free(allocation: Allocation) -> Policy | None:
    """The free signal that computes least at matched quality; live before replay."""
    found = [p for p in allocation.policies if p.signal in FREE and p.matched and p.matched.cost_ratio is not None]
    found.sort(key=lambda p: (p.mode != "live", p.matched.cost_ratio if p.matched and p.matched.cost_ratio else 9.0))
    return found[0] if found else None


def sentences(measure: Measure | None, allocation: Allocation | None) -> list[str]:
    """A paragraph per record."""
    found = []
    if measure:
        found.append(" ".join(_of_measure(measure)))
    if allocation:
        found.append(" ".join(_of_allocation(allocation)))
    return found


def _of_measure(measure: Measure) -> list[str]:
    loss, mean = measure.loss, measure.mean_depth
    first, last = loss.depths[0], loss.depths[-1]
    knee = round(mean) if mean and round(mean) in loss.depths else last
    start, middle, end = loss.at(first)[0] or 0.0, loss.at(knee)[0] or 0.0, loss.at(last)[0] or 0.0
    text = f"On {count(measure.tokens, 'token')} of held-out text the loss goes from {start:.3f} nats at depth {first}"
    text += f" to {middle:.3f} at depth {knee}"
    if knee != last:
        named = " (the training mean)" if mean and knee == round(mean) else ""
        text += f"{named} and changes by {end - middle:+.4f} from there to depth {last}".replace("-", "−")
    found = [text + "."]
    if measure.convergence:
        settled = measure.convergence
        words = f"Half of the tokens have settled by depth {settled.median:g}"
        share = settled.share_after.get(round(mean)) if mean else None
        found.append(words + (f"; {percent(share, 1)} still move after depth {mean:g}." if share is not None else "."))
    return found


def _of_allocation(allocation: Allocation) -> list[str]:
    a1, free = allocation.policy("kl"), best_free(allocation)
    found = [_a1(a1, allocation)] if a1 else []
    if allocation.best_fixed:
        found.append(_fixed(allocation))
    if free and free.matched and free.matched.cost_ratio is not None:
        found.append(_free(free, allocation))
    return found


def _fixed(allocation: Allocation) -> str:
    best, reference = allocation.best_fixed, allocation.reference_depth
    assert best is not None
    if best.depth >= reference:
        return (
            f"No shallower depth is good enough for all tokens alike, so depth {reference} is also the "
            "best fixed depth."
        )
    saved = percent(1 - best.depth / reference)
    return (
        f"The yardstick is the best fixed depth, {best.depth} for every token: it saves {saved} of the "
        "passes and checks nothing."
    )


def _free(free: Policy, allocation: Allocation) -> str:
    m = free.matched
    assert m is not None and m.cost_ratio is not None
    text = (
        f"Among signals that need no readout, {free.signal} gets there with {m.mean_depth:.2f} passes and "
        f"{m.cost_ratio:.2f} times the compute"
    )
    text += f" of depth {allocation.reference_depth}"
    if m.cost_vs_best is not None and allocation.best_fixed:
        text += f", {m.cost_vs_best:.2f} times that of the best fixed depth"
    return f"{text} ({free.mode})."


def _a1(a1: Policy, allocation: Allocation) -> str:
    reference, name = allocation.reference_depth, "A1 (stop a token when KL(now‖before) falls below a threshold)"
    if a1.matched is None:
        where = f"{near(allocation.tolerance)} uniform depth {reference}"
        return f"{name} does not come {where} ({a1.mode}) at any threshold tried."
    m, passes = a1.matched, f"{a1.matched.mean_depth:.2f} passes per token"
    text = f"{name} comes {near(allocation.tolerance)} uniform depth {reference} with {passes} ({a1.mode}): "
    text += changed(m.saving, m.saving_ci, "fewer", "more")
    cost, ends = spared(m.cost_ratio, m.cost_ratio_ci)
    if cost is None:
        return text + "."
    return f"{text}. Each check reads the output out; with those included it computes {changed(cost, ends)} in total."


STUDY: tuple[tuple[str, str], ...] = (
    ("loss by depth", "falls from depth 1 to 8, then flat to 32 (3.20 nats)"),
    ("mean KL at depth 2, 16", "3.9e-1, 8.5e-6"),
    ("median convergence depth", "6"),
    ("still moving at the training mean", "about 10% at 8"),
    ("A1 at the quality of depth 8", "4.94 passes (38% fewer)"),
    ("A2 at the quality of depth 8", "nearly full depth: no saving"),
)


def beside_study(measure: Measure | None, allocation: Allocation | None) -> list[tuple[str, str, str]]:
    """(quantity, the study, here) for the figures that a run has."""
    here = {**(_study_measure(measure) if measure else {}), **(_study_allocation(allocation) if allocation else {})}
    return [(name, theirs, here[name]) for name, theirs in STUDY if name in here]


def _study_measure(measure: Measure) -> dict[str, str]:
    loss, mean = measure.loss, round(measure.mean_depth) if measure.mean_depth else None
    marks = sorted({loss.depths[0], mean or loss.depths[-1], loss.depths[-1]} & set(loss.depths))
    found = {"loss by depth": ", ".join(f"{loss.at(d)[0]:.3f} at {d}" for d in marks)}
    if measure.kl:
        values = [measure.kl.at(d)[0] for d in (2, 16)]
        found["mean KL at depth 2, 16"] = ", ".join("–" if v is None else f"{v:.1e}" for v in values)
    if measure.convergence:
        found["median convergence depth"] = f"{measure.convergence.median:g}"
        share = measure.convergence.share_after.get(mean or 0)
        if share is not None:
            found["still moving at the training mean"] = f"{percent(share, 1)} at {mean}"
    return found


def _study_allocation(allocation: Allocation) -> dict[str, str]:
    found = {}
    for signal, name in (("kl", "A1"), ("probe", "A2")):
        policy = allocation.policy(signal)
        if policy:
            m, where = policy.matched, f"{policy.mode}, reference depth {allocation.reference_depth}"
            way = (
                "not reached"
                if m is None
                else f"{m.mean_depth:.2f} passes ({percent(abs(m.saving))} {'fewer' if m.saving >= 0 else 'more'})"
            )
            found[f"{name} at the quality of depth 8"] = f"{way}; {where}"
    return found
