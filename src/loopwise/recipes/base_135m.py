"""The 135M-class recipes of the study: 2/8/2 blocks, width 768, SmolLM2's vocabulary, mean depth 8."""

from loopwise.config import ModelConfig
from loopwise.train.config import DataConfig, DepthConfig, Recipe, Source, TrainConfig

TOKENIZER = "hub:HuggingFaceTB/SmolLM2-135M"


def base_135m() -> Recipe:
    """FineWeb-Edu, 2.6B tokens (about 20 per parameter), one GPU.

    Command: `loopwise prepare --text hub:HuggingFaceFW/fineweb-edu:sample-10BT --tokenizer
    hub:HuggingFaceTB/SmolLM2-135M --out data/fineweb` then `loopwise train base-135m --data data/fineweb --out
    runs/base-135m`; `--dry-run` prints memory, FLOPs, hours and cost first.
    Expected (the study's figures; not run by this project): loss falls from depth 1 to 8, then flat at 3.20 nats.
    """
    return _recipe("base-135m", "hub:HuggingFaceFW/fineweb-edu:sample-10BT", tokens=2_600_000_000)


def base_135m_stories() -> Recipe:
    """TinyStories, 0.5B tokens (about one epoch), one GPU.

    Command: `loopwise prepare --text hub:roneneldan/TinyStories --tokenizer hub:HuggingFaceTB/SmolLM2-135M --out
    data/stories` then `loopwise train base-135m-stories --data data/stories --out runs/base-135m-stories`.
    Expected: not run by this project.
    """
    return _recipe("base-135m-stories", "hub:roneneldan/TinyStories", tokens=500_000_000)


def _recipe(name: str, text: str, tokens: int) -> Recipe:
    model = ModelConfig(
        vocab_size=49_152,
        d_model=768,
        num_heads=12,
        d_ff=2048,
        prelude_layers=2,
        core_layers=8,
        coda_layers=2,
        context=1024,
        max_depth=32,
        mean_depth=8.0,
    )
    train = TrainConfig(
        tokens=tokens,
        batch_size=256,
        accumulation=64,
        context=1024,
        lr=1e-3,
        warmup_steps=500,
        z_loss=1e-4,
        checkpoint_interval=250,
        eval_interval=250,
        eval_batches=1,
        eval_depths=(1, 2, 4, 6, 8, 12, 16, 32),
        dtype="bfloat16",
        compile=True,
    )
    data = DataConfig(sources=(Source(name=name, text=text),), tokenizer=TOKENIZER, holdout=0.001)
    return Recipe(
        name=name, model=model, train=train, depth=DepthConfig(mean=8.0, sigma=0.5, max=32, backprop=8), data=data
    )
