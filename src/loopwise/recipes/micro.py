"""A model small enough to train in seconds: for tests, examples and trying the trainer out."""

from loopwise.config import ModelConfig
from loopwise.train.config import DepthConfig, Recipe, TrainConfig


def micro() -> Recipe:
    """About 0.05M parameters, 512-token vocabulary, 64k tokens.

    Command: `loopwise prepare --text FILE --out data --vocab 512 && loopwise train micro --data data --out runs/micro`.
    Expected: half a minute on one CPU core; the loss only has to fall.
    """
    model = ModelConfig(
        vocab_size=512,
        d_model=48,
        num_heads=3,
        d_ff=128,
        prelude_layers=1,
        core_layers=1,
        coda_layers=1,
        context=64,
        max_depth=16,
        mean_depth=4.0,
    )
    train = TrainConfig(
        tokens=65_536,
        batch_size=8,
        context=32,
        warmup_steps=20,
        checkpoint_interval=50,
        eval_interval=100,
        eval_batches=2,
        eval_depths=(1, 2, 4, 8),
        threads=1,
    )
    return Recipe(name="micro", model=model, train=train, depth=DepthConfig(mean=4.0, max=12, backprop=4))
