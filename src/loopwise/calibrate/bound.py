"""Valid p-values for "this policy loses more than α": a test by betting over documents.

Documents are the exchangeable unit. x_j is what document j loses under a policy, on average over its tokens, against
the reference depth. Nothing bounds x_j from above, so the risk that is controlled is that of min(x_j, B): a document
that loses more than the *cap* B counts as losing B. From below nothing needs bounding.

Under the null hypothesis E[min(x, B)] >= α the capital K_n = Π (1 + λ_j (α - min(x_j, B))), with every stake λ_j in
[0, 1 / (B - α)) fixed before x_j is seen, is a non-negative supermartingale that starts at 1. So by Ville's
inequality 1 / max_n K_n is a p-value, at any sample size, for any distribution. Stakes follow Waudby-Smith and Ramdas
(JRSS B 2024, hedged capital, equation 26 one-sided): they grow as the variance seen so far shrinks, which is what
makes the test sharp where documents agree.
"""

import math

import numpy as np
from jaxtyping import Float
from scipy.stats import beta

CAP = 10.0  # B / α: a document may lose ten times the tolerance before it is clipped
SAFE = 0.9  # stakes stay below this share of the largest that keeps capital positive


def cap_of(tolerance: float, *, most: float = math.inf) -> float:
    """B for a tolerance; `most` is the largest value a loss can take (1 for shares)."""
    return min(CAP * tolerance, most)


def p_values(
    losses: Float[np.ndarray, "documents *policies"], tolerance: float, *, cap: float, confidence: float
) -> Float[np.ndarray, "*policies"]:
    """One p-value per policy for E[min(loss, cap)] >= tolerance; documents must be in an order that does not depend on
    their losses. `confidence` only tunes the stakes: the p-value is valid at every level."""
    gain = tolerance - np.minimum(losses.astype(np.float64), cap)
    count, most = len(gain), SAFE / (cap - tolerance)
    goal = 2 * math.log(1 / (1 - confidence)) / max(count, 1)
    total, square = np.zeros(gain.shape[1:]), np.full(gain.shape[1:], ((cap - tolerance) / 2) ** 2)
    capital, best = np.zeros(gain.shape[1:]), np.zeros(gain.shape[1:])
    for seen, value in enumerate(gain, 1):
        stake = np.minimum(np.sqrt(goal / (square / seen)), most)  # square / seen: variance of what came before
        capital = capital + np.log1p(stake * value)
        best = np.maximum(best, capital)
        total = total + value
        square = square + (value - total / (seen + 1)) ** 2
    return np.asarray(np.exp(-best))  # an array even for a single policy


def documents_needed(confidence: float, *, ratio: float = CAP) -> int:
    """Fewest documents with which any policy could pass, were it to lose nothing on every one of them. `ratio` B/α."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is no probability")
    for count in range(1, 1_000_000):
        if p_values(np.zeros((count,)), 1.0, cap=ratio, confidence=confidence) <= 1 - confidence:
            return count
    raise ValueError(f"no number of documents reaches confidence {confidence}")


def share_above(count: int, total: int, confidence: float) -> float:
    """Upper confidence bound of a share of which `count` of `total` were seen (Clopper and Pearson, 1934)."""
    return 1.0 if count >= total else float(beta.ppf(confidence, count + 1, total - count))
