"""Section 4, learning from scratch: small models trained here for the same number of tokens, with the same shape.

| arm | training | depth of a token at test time |
|---|---|---|
| `random` | the study's recipe: one log-normal depth per step | read: relative state change, swept |
| `fixed` | every step at one depth | that depth |
| `ponder-β` | PonderNet: Σ p_i nll_i + β KL(p ‖ prior), head trained jointly | first with P(halt) of at least 1/2 |
| `router` | token choice by the prelude's output, with a balance loss | the router's choice |
| `tuned-β` | the checkpoint, trained on jointly with a PonderNet head | as `ponder-β` |

PonderNet: arXiv 2107.05407, geometric prior. Router: after mixture-of-recursions, arXiv 2507.10524.
A joint arm *collapses* if nearly all tokens take the same depth, or it halts after one pass. The scale is far below the
study's: the arms say whether the failure shows at this scale, not that it must at another.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from loopwise.checkpoint.native import Checkpoint
from loopwise.config import ModelConfig
from loopwise.data.text import documents
from loopwise.data.tokenizer import Tokenizer
from loopwise.model.context import DenseCausal
from loopwise.model.recurrent import RecurrentLM
from loopwise.records import sha256
from loopwise.study.halting import geometric, halt_probabilities

VERSION = 1
DEPTHS, MEAN = 6, 3  # most passes, and the mean of the sampled and of the fixed arm
CONTEXT, BATCH = 64, 16
VOCAB, HELD = 512, 48  # size of the vocabulary, held-out windows of each corpus
RATE, TUNED_RATE, WARM_UP = 3e-3, 3e-4, 50
BALANCE = 0.01
BETAS = (0.01, 0.1)
Tell = Callable[[str, float], None]
Losses = Callable[[Tensor, int], Tensor]


class Data(NamedTuple):
    """A stream of training ids, and held-out windows `[windows, context + 1]`."""

    stream: Int[np.ndarray, "tokens"]
    held: Int[Tensor, "windows time"]

    def batch(self, generator: torch.Generator) -> Int[Tensor, "batch time"]:
        """Random windows of the stream."""
        starts = torch.randint(0, len(self.stream) - CONTEXT - 1, (BATCH,), generator=generator).tolist()
        return torch.from_numpy(np.stack([self.stream[s : s + CONTEXT + 1] for s in starts]).astype(np.int64))


def read_data(tokenizer: Tokenizer, training: Sequence[str], held: Sequence[str], tokens: int) -> Data:
    """`tokens` of training text from every source, and held-out windows; documents are never in both."""
    windows: list[np.ndarray] = []
    used = set()
    for source in held:
        kept = 0
        for text in documents([source]):
            ids = np.array(tokenizer.encode_document(text), dtype=np.int64)
            cuts = [ids[a : a + CONTEXT + 1] for a in range(0, len(ids) - CONTEXT, CONTEXT)][:4]
            windows, kept = windows + cuts, kept + len(cuts)
            used.add(sha256(text.encode()))
            if kept >= HELD:
                break
    parts: list[int] = []
    for source in training:
        count = len(parts)
        for text in documents([source]):
            if sha256(text.encode()) not in used:
                parts += tokenizer.encode_document(text)
            if len(parts) - count >= tokens:
                break
    return Data(np.array(parts, dtype=np.int32), torch.from_numpy(np.stack(windows)))


def small_tokenizer(training: Sequence[str]) -> Tokenizer:
    """A small vocabulary, so that a readout after every pass does not cost more than the passes."""
    texts = [text[:20_000] for source in training for text in islice(documents([source]), 40)]
    return Tokenizer.train(texts, vocab_size=VOCAB)


def shape(vocab_size: int) -> ModelConfig:
    """The small model: 1/1/1 blocks, width 64."""
    return ModelConfig(
        vocab_size=vocab_size,
        d_model=64,
        num_heads=4,
        d_ff=176,
        prelude_layers=1,
        core_layers=1,
        coda_layers=1,
        context=CONTEXT,
        embed_scale=8.0,
        max_depth=DEPTHS,
        mean_depth=float(MEAN),
    )


class Net(nn.Module):
    """A recurrent model with a halting head (`halt`) and a router (`route`); each arm uses what it needs."""

    def __init__(self, model: RecurrentLM, seed: int) -> None:
        super().__init__()
        self.model = model
        generator = torch.Generator().manual_seed(seed)
        self.halt = nn.Linear(model.config.d_model, 1)
        self.route = nn.Linear(model.config.d_model, DEPTHS)
        nn.init.zeros_(self.halt.weight)
        nn.init.constant_(self.halt.bias, float(np.log(1 / (MEAN - 1))))
        nn.init.zeros_(self.route.bias)
        nn.init.normal_(self.route.weight, std=0.02, generator=generator)

    def states(self, tokens: Int[Tensor, "batch time"], depth: int) -> Iterator[tuple[int, Tensor, DenseCausal]]:
        """Depth, state and context after each pass."""
        ctx = DenseCausal.over(tokens)
        e = self.model.prelude(tokens, ctx)
        s = self.model.init_state(e, ctx)
        for i in range(1, depth + 1):
            ctx.depth = i
            s = self.model.core(s, e, ctx)
            yield i, s, ctx

    def nll(self, state: Tensor, ctx: DenseCausal, targets: Tensor) -> Float[Tensor, "batch time"]:
        """Loss of every token."""
        return F.cross_entropy(self.model.coda(state, ctx).transpose(1, 2), targets, reduction="none")

    def all_nll(self, windows: Tensor) -> tuple[Float[Tensor, "depths batch time"], Float[Tensor, "less batch time"]]:
        """Loss after every pass, and 1 - λ after every pass but the last."""
        losses, going = [], []
        for i, s, ctx in self.states(windows[:, :-1], DEPTHS):
            losses.append(self.nll(s, ctx, windows[:, 1:]))
            if i < DEPTHS:
                going.append(torch.sigmoid(-self.halt(s)[..., 0]))
        return torch.stack(losses), torch.stack(going)

    def routed(self, windows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Loss of every token under the router, the chosen depths, and the router's probabilities.

        A token keeps the state of its last chosen pass; what the coda reads is mixed with the state after one pass by
        the router's probability, so that its gradient says whether going on was worth it.
        """
        kept = first = probs = choice = last = None
        for i, s, e, ctx in self._frozen(windows[:, :-1]):
            if i == 1:
                probs = self.route(e).softmax(-1)
                choice, first = probs.argmax(-1) + 1, s
            kept, last = s, ctx
        assert kept is not None and first is not None and probs is not None and choice is not None and last is not None
        weight = probs.gather(-1, (choice - 1)[..., None])
        mixed = weight * kept + (1 - weight) * first
        return self.nll(mixed, last, windows[:, 1:]), choice, probs

    def _frozen(self, tokens: Tensor) -> Iterator[tuple[int, Tensor, Tensor, DenseCausal]]:
        ctx = DenseCausal.over(tokens)
        e = self.model.prelude(tokens, ctx)
        choice = self.route(e).argmax(-1) + 1
        s = self.model.init_state(e, ctx)
        for i in range(1, DEPTHS + 1):
            ctx.depth = i
            s = torch.where((choice >= i)[..., None], self.model.core(s, e, ctx), s)
            yield i, s, e, ctx


def sampled(step: int, seed: int) -> int:
    """Log-normal depth with mean `MEAN`, a pure function of seed and step."""
    rng = np.random.default_rng([seed, step])
    return int(np.clip(round(rng.lognormal(np.log(MEAN) - 0.125, 0.5)), 1, DEPTHS))


def objective(net: Net, arm: str, windows: Tensor, step: int, seed: int) -> Tensor:
    """The training loss of an arm."""
    if arm in ("random", "fixed"):
        depth = MEAN if arm == "fixed" else sampled(step, seed)
        *_, (_, s, ctx) = net.states(windows[:, :-1], depth)
        return net.nll(s, ctx, windows[:, 1:]).mean()
    if arm == "router":
        nll, choice, probs = net.routed(windows)
        share = torch.stack([(choice == d).float().mean() for d in range(1, DEPTHS + 1)])
        return nll.mean() + BALANCE * DEPTHS * (share * probs.mean((0, 1))).sum()
    losses, going = net.all_nll(windows)
    p = halt_probabilities(going.flatten(1)).reshape(losses.shape)
    wanted = geometric(1 / MEAN, DEPTHS).log()[:, None, None]
    away = (p * ((p + 1e-9).log() - wanted)).sum(0).mean()
    return (p * losses).sum(0).mean() + float(arm.partition("-")[2]) * away


def train(net: Net, arm: str, data: Data, tokens: int, seed: int, rate: float, tell: Tell) -> list[dict[str, float]]:
    """Train in place; returns the mean depth and held-out loss along the way."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    steps, path = max(1, tokens // (BATCH * CONTEXT)), []
    for step in range(steps):
        scale = min(1.0, (step + 1) / WARM_UP) * min(1.0, (steps - step) / max(1, 0.2 * steps))
        for group in optimizer.param_groups:
            group["lr"] = rate * scale
        loss = objective(net, arm, data.batch(generator), step, seed)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if step % max(1, steps // 8) == 0 or step == steps - 1:
            found = evaluate(net, arm, data.held[:16])
            path.append({"tokens": (step + 1) * BATCH * CONTEXT, "depth": found["mean_depth"], "loss": found["loss"]})
        tell(f"training {arm}, seed {seed}", (step + 1) / steps)
    return path


@torch.no_grad()
def evaluate(net: Net, arm: str, held: Int[Tensor, "windows time"]) -> dict[str, Any]:
    """Loss and depth per token on held-out windows under the arm's own way of choosing, and loss at fixed depths."""
    losses, depths, fixed = [], [], []
    for windows in held.split(BATCH):
        nll, going = net.all_nll(windows)
        if arm == "router":
            own, choice, _ = net.routed(windows)
        elif arm in ("random", "fixed"):
            own, choice = nll[MEAN - 1], torch.full_like(windows[:, 1:], MEAN)
        else:
            cumulated = halt_probabilities(going.flatten(1)).reshape(nll.shape).cumsum(0)
            choice = (cumulated < 0.5).sum(0) + 1
            own = nll.gather(0, (choice - 1)[None])[0]
        losses.append(own.flatten())
        depths.append(choice.flatten())
        fixed.append(nll.flatten(1))
    depth = torch.cat(depths)
    return {
        "loss": float(torch.cat(losses).mean()),
        "mean_depth": float(depth.float().mean()),
        "share": (torch.bincount(depth, minlength=DEPTHS + 1)[1:].float() / len(depth)).tolist(),
        "loss_by_depth": torch.cat(fixed, 1).mean(1).tolist(),
        "tokens": len(depth),
    }


@torch.no_grad()
def reading(net: Net, held: Int[Tensor, "windows time"], tolerance: float) -> dict[str, float]:
    """The `random` arm read: the relative state change swept over thresholds (replay), at the smallest mean depth whose
    loss is within `tolerance` of the loss at the training mean."""
    nlls, changes = [], []
    for windows in held.split(BATCH):
        before, nll, change = None, [], []
        for i, s, ctx in net.states(windows[:, :-1], DEPTHS):
            nll.append(net.nll(s, ctx, windows[:, 1:]).flatten())
            if before is not None and i < DEPTHS:
                change.append(((s - before).norm(dim=-1) / s.norm(dim=-1)).flatten())
            before = s
        nlls.append(torch.stack(nll))
        changes.append(torch.stack(change))
    nll, change = torch.cat(nlls, 1), torch.cat(changes, 1)
    limit = float(nll[MEAN - 1].mean()) + tolerance
    best = {"mean_depth": float(MEAN), "loss": float(nll[MEAN - 1].mean()), "threshold": 0.0}
    for threshold in torch.quantile(change.flatten()[:100_000], torch.linspace(0.02, 0.98, 33)).tolist():
        stop = torch.cat([change < threshold, torch.ones_like(change[:1], dtype=torch.bool)])
        depth = stop.float().argmax(0) + 2
        loss = float(nll.gather(0, (depth - 1)[None]).mean())
        if loss <= limit and float(depth.float().mean()) < best["mean_depth"]:
            best = {"mean_depth": float(depth.float().mean()), "loss": loss, "threshold": threshold}
    return best


def joint(
    checkpoint: Checkpoint,
    training: Sequence[str],
    held: Sequence[str],
    *,
    tokens: int,
    seeds: int,
    tolerance: float,
    tell: Tell,
) -> dict[str, Any]:
    """All arms and seeds on the same text. The `tuned` arm goes on from the checkpoint, for a quarter of the tokens."""
    small = small_tokenizer(training)
    data, arms = read_data(small, training, held, tokens), {}
    for arm in ("random", "fixed", *(f"ponder-{b:g}" for b in BETAS), "router"):
        runs = []
        for seed in range(seeds):
            net = Net(RecurrentLM(shape(VOCAB)).initialise(seed), seed)
            path = train(net, arm, data, tokens, seed, RATE, tell)
            found = {"seed": seed, "path": path, **evaluate(net, arm, data.held)}
            if arm == "random":
                found["reading"] = reading(net, data.held, tolerance)
            runs.append(found)
        arms[arm] = {"seeds": runs}
    own = read_data(Tokenizer.load(checkpoint.tokenizer_path), training, held, tokens)
    net, arm = Net(checkpoint.model().requires_grad_(True), 0), f"tuned-{BETAS[0]:g}"
    path = train(net, arm, own, tokens // 4, 0, TUNED_RATE, tell)
    arms[arm] = {"seeds": [{"seed": 0, "path": path, **evaluate(net, arm, own.held)}]}
    return {
        "arms": arms, "tokens": tokens, "tuned_tokens": tokens // 4, "depths": DEPTHS, "mean": MEAN,
        "held_tokens": int(data.held[:, 1:].numel()), "vocabulary": VOCAB,
    }  # fmt: skip
