"""Sample text while training: a greedy continuation of held-out text at the training mean depth."""

from collections.abc import Callable

import torch

from loopwise.data.tokenizer import Tokenizer
from loopwise.exit.policy import Policy
from loopwise.generate import Decoder, generate
from loopwise.model.recurrent import RecurrentLM
from loopwise.sampling import SamplingParams
from loopwise.train.validate import Batches

PROMPT, LENGTH = 16, 48


def sampler(tokenizer: Tokenizer, held_out: Batches) -> Callable[[RecurrentLM], str]:
    """A function of the model that continues the first tokens of the first held-out window."""
    prompt = held_out.batch(0)[0, :PROMPT].tolist()

    @torch.no_grad()
    def sample(model: RecurrentLM) -> str:
        depth = max(1, min(round(model.config.mean_depth), model.config.max_depth))
        length = min(len(prompt) + LENGTH, model.config.context)
        decoder = Decoder(model, Policy.parse(f"depth={depth}"), length=length)
        params = SamplingParams(temperature=0.0, max_tokens=max(1, length - len(prompt)))
        with model.eager():
            made = generate(decoder, prompt, params)
        # an untrained model may choose a spare row of the embedding, which stands for no token
        known = [token.id for token in made.tokens if token.id < tokenizer.size]
        return f"{tokenizer.decode(prompt)}|{tokenizer.decode(known)}"

    return sample
