"""A model class for lm-evaluation-harness: batched, with per-token exit, counting what it spent.

Sequences are scored teacher-forced. Uniform depth runs as padded batches; any other policy runs live, position by
position over many sequences side by side, so that context keeps the keys and values the policy left behind.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor

from loopwise.checkpoint.native import Checkpoint
from loopwise.config import InputError
from loopwise.data.tokenizer import Tokenizer
from loopwise.exit.policy import Policy
from loopwise.generate import Decoder, generate
from loopwise.measure.live import live
from loopwise.measure.windows import Windows
from loopwise.model.context import DenseCausal
from loopwise.model.cost import Cost
from loopwise.sampling import SamplingParams

MAX_NEW_TOKENS = 256


class Scored(NamedTuple):
    """Log-probability of each scored token, and the likeliest token in its place."""

    logprob: np.ndarray
    top1: np.ndarray


class Spent(NamedTuple):
    """Tokens processed, core passes and readouts over all of them."""

    tokens: int = 0
    passes: int = 0
    readouts: int = 0

    def plus(self, tokens: int, passes: int, readouts: int) -> "Spent":
        """With more work added."""
        return Spent(self.tokens + tokens, self.passes + passes, self.readouts + readouts)


class LoopwiseLM(TemplateLM):
    """`checkpoint` under `policy` (default: uniform depth at the training mean), `batch_size` sequences at a time.

    `spent` counts tokens, passes and readouts since `reset()`. Raises `InputError` for a policy that the checkpoint
    cannot run.
    """

    def __init__(self, checkpoint: Checkpoint, policy: Policy, *, batch_size: int = 16) -> None:
        super().__init__()
        self.model, self.probe, self.batch = checkpoint.model(), checkpoint.probe(), batch_size
        self.policy, self.cost = policy.bind(checkpoint.config.max_depth), Cost.of(checkpoint.config)
        self.words = Tokenizer.load(checkpoint.tokenizer_path)
        self.words.check_vocab(checkpoint.config.vocab_size)
        self.max_length = checkpoint.config.context
        if self.policy.recorded is not None:
            raise InputError("policy 'replay:...' belongs to one text: give depth=N or a signal")
        self.reset()

    def reset(self) -> None:
        """Start counting anew."""
        self.spent = Spent()

    @property
    def eot_token_id(self) -> int:
        """End of text."""
        return self.words.eos_id

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text without context: the beginning-of-text token if there is one."""
        return self.words.eos_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids; special tokens written in the text are recognised, none are added."""
        return self.words.encode(string, specials=True)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, in windows that each token is scored in once."""
        found = []
        for request in requests:
            windows = get_rolling_token_windows(
                self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            pairs = [(("", ""), *make_disjoint_window(window)) for window in windows]
            found.append(sum(logprob for logprob, _ in self._loglikelihood_tokens(pairs)))
        return found

    def _loglikelihood_tokens(self, requests: Sequence[Any], **kwargs: Any) -> list[tuple[float, bool]]:
        """(log-probability, whether greedy decoding would say it) of each continuation."""
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i][1]) - len(requests[i][2]))
        found: dict[int, tuple[float, bool]] = {}
        for start in range(0, len(order), self.batch):
            chosen = order[start : start + self.batch]
            rows = [(requests[i][1] + requests[i][2])[-(self.max_length + 1) :] for i in chosen]
            tails = [len(requests[i][2]) for i in chosen]
            for i, row, tail, scored in zip(chosen, rows, tails, self._score(rows, tails), strict=True):
                found[i] = (float(scored.logprob.sum()), bool((scored.top1 == np.array(row[-tail:])).all()))
        return [found[i] for i in range(len(requests))]

    def _score(self, rows: list[list[int]], tails: list[int]) -> Iterator[Scored]:
        return self._uniform(rows, tails) if self.policy.signal is None else self._live(rows, tails)

    @torch.inference_mode()
    def _uniform(self, rows: list[list[int]], tails: list[int]) -> Iterator[Scored]:
        """One padded batch at fixed depth; the head reads only the scored positions."""
        depth, longest = self.policy.max_depth or 1, max(map(len, rows)) - 1
        tokens = torch.zeros(len(rows), longest, dtype=torch.long)
        for i, row in enumerate(rows):
            tokens[i, : len(row) - 1] = torch.tensor(row[:-1])
        ctx = DenseCausal.over(tokens)  # right padding is never seen by what comes before it
        self.model.rotary.reserve(longest)
        e = self.model.prelude(tokens, ctx)
        s = self.model.recurrence(self.model.init_state(e, ctx), e, ctx, depth)
        hidden = self.model.hidden(s, ctx)
        count = sum(len(row) - 1 for row in rows)
        self.spent = self.spent.plus(count, depth * count, sum(tails))
        for row, tail, states in zip(rows, tails, hidden, strict=True):
            end = len(row) - 1
            yield _scored(self.model.logits(states[end - tail : end]), row[-tail:])

    def _live(self, rows: list[list[int]], tails: list[int]) -> Iterator[Scored]:
        """Per-token exit, sequences side by side."""
        ids = [np.array(row, dtype=np.int32) for row in rows]
        hashes = [str(i) for i in range(len(rows))]
        windows = Windows(ids=ids, document=np.arange(len(rows)), hashes=hashes, context=self.max_length)
        out = live(self.model, windows, self.policy, probe=self.probe, rows=self.batch)
        self.spent = self.spent.plus(windows.num_tokens, int(out.depth.sum()), int(out.readouts.sum()))
        for tail, end in zip(tails, windows.offsets + windows.lengths, strict=True):
            yield Scored(-out.nll[end - tail : end], out.top1[end - tail : end])

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Greedy (or sampled) continuations up to a stop string, by the reference decoder."""
        return [self._generate(*request.args) for request in requests]

    @torch.inference_mode()
    def _generate(self, context: str, how: dict[str, Any]) -> str:
        until = how.get("until") or []
        most = int(how.get("max_gen_toks", MAX_NEW_TOKENS))
        params = SamplingParams(
            temperature=float(how.get("temperature", 0.0)) if how.get("do_sample") else 0.0,
            max_tokens=most,
            stop=tuple([until] if isinstance(until, str) else until),
        )
        prompt = self.tok_encode(context)[-(self.max_length - most) :] or [self.prefix_token_id]
        decoder = Decoder(self.model, self.policy, length=len(prompt) + most, probe=self.probe)
        made = generate(decoder, prompt, params, eos=self.eot_token_id, decode=self.words.decode)
        passes = sum(made.prompt_depths) + sum(t.depth for t in made.tokens)
        readouts = sum(t.readouts for t in made.tokens)
        self.spent = self.spent.plus(len(prompt) + len(made.tokens), passes, readouts)
        return made.text


def _scored(logits: Tensor, targets: list[int]) -> Scored:
    log_probs = logits.float().log_softmax(-1)
    chosen = log_probs.gather(1, torch.tensor(targets)[:, None])[:, 0]
    return Scored(chosen.numpy(), log_probs.argmax(-1).numpy())
