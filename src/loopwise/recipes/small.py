"""A model for one GPU and an afternoon: large enough to write, small enough to repeat."""

from loopwise.config import ModelConfig
from loopwise.train.config import DataConfig, DepthConfig, Recipe, Source, TrainConfig


def small() -> Recipe:
    """12.7M parameters, TinyStories and chain puzzles, 500M tokens.

    Command, in an empty folder (the first set trains the tokenizer, the others take it over):
    `loopwise prepare --text hub:roneneldan/TinyStories --vocab 8192 --out data/stories`, then for each NAME TEXT of
    hop1 puzzles:1-1:12000:1, hop3 puzzles:2-3:100000:2, hop10 puzzles:4-10:400000:3
    `loopwise prepare --text TEXT --tokenizer data/stories --out data/NAME`, then
    `loopwise train small --data data --out runs/small`.
    Expected: as `tiny`, with better prose; not run by this project.
    """
    model = ModelConfig(
        vocab_size=8192, d_model=320, num_heads=5, d_ff=864, prelude_layers=2, core_layers=4, coda_layers=2,
        context=512, embed_scale=17.9, max_depth=32, mean_depth=8.0,
    )  # fmt: skip
    train = TrainConfig(
        tokens=500_000_000, batch_size=64, accumulation=2, context=512, optimizer="muon", lr=3e-3, muon_lr=5e-3,
        warmup_steps=200, checkpoint_interval=500, eval_interval=1000, eval_batches=4, eval_depths=(1, 2, 4, 6, 8, 32),
        dtype="bfloat16", compile=True,
    )  # fmt: skip
    sources = (
        Source(name="stories", text="hub:roneneldan/TinyStories", weight=0.4, final_weight=0.6),
        Source(name="hop1", text="puzzles:1-1:12000:1", weight=0.5, final_weight=0.02),
        Source(name="hop3", text="puzzles:2-3:100000:2", weight=0.1, final_weight=0.06),
        Source(name="hop10", text="puzzles:4-10:400000:3", weight=0.0, final_weight=0.32),
    )
    depth = DepthConfig(mean=8.0, sigma=0.5, min=3, max=32)
    return Recipe(name="small", model=model, train=train, depth=depth, data=DataConfig(sources=sources, mix_steps=2000))
