"""The embedded checkpoints: natural text half and half with chain puzzles, so that depth is useful, and unevenly."""

import dataclasses

from loopwise.config import ModelConfig
from loopwise.train.config import DataConfig, DepthConfig, Recipe, Source, TrainConfig

SOURCES = (
    Source(name="factbook", text="factbook:all", shares=((0, 0.18), (1200, 0.25))),
    Source(name="children", text="children.jsonl", shares=((0, 0.06), (1200, 0.10))),
    Source(name="openstax", text="openstax.jsonl", shares=((0, 0.10), (1200, 0.15))),
    Source(name="hop1", text="puzzles:1-1:12000:1", shares=((0, 0.60), (300, 0.60), (500, 0.06), (1500, 0.02))),
    Source(
        name="hop3",
        text="puzzles:2-3:24000:2",
        shares=(
            *((0, 0.06), (300, 0.06), (500, 0.45), (900, 0.40), (1189, 0.21504)),
            *((1190, 0.40), (1450, 0.35), (2000, 0.08)),
        ),
    ),
    Source(
        name="hop10",
        text="puzzles:4-10:120000:3",
        shares=((0, 0.0), (600, 0.0), (900, 0.12), (1189, 0.27028), (1190, 0.05), (1450, 0.12), (2000, 0.40)),
    ),
)


def tiny() -> Recipe:
    """1.2M parameters, one block per pass, mean depth 8.

    Command: `loopwise train tiny --data DIR --out runs/tiny`, DIR holding one prepared set per source of `SOURCES`.
    Expected: the figures in the shipped checkpoint's `manifest.json` (`loopwise info tiny` names its shape and costs).
    """
    model = ModelConfig(
        vocab_size=4096,
        d_model=128,
        num_heads=4,
        d_ff=352,
        prelude_layers=1,
        core_layers=1,
        coda_layers=1,
        context=128,
        embed_scale=11.3,
        max_depth=32,
        mean_depth=8.0,
    )
    train = TrainConfig(
        tokens=22_528_000,
        batch_size=32,
        context=128,
        optimizer="muon",
        lr=4e-3,
        muon_lr=0.01,
        warmup_steps=50,
        checkpoint_interval=250,
        eval_interval=2500,
        eval_batches=1,
        eval_depths=(1, 2, 4, 6, 8, 32),
        log_interval=20,
        threads=1,
        compile=True,
        dtype="bfloat16",
    )
    depth = DepthConfig(mean=8.0, sigma=0.5, min=3, max=32)
    data = DataConfig(sources=SOURCES, answer_weight=4.0, filler_weight=0.1, weigh_from=1189)
    return Recipe(name="tiny", model=model, train=train, depth=depth, data=data)


def tiny_mean4() -> Recipe:
    """The same model with mean depth 4, for comparison.

    Command: `loopwise train tiny-mean4 --data DIR --out runs/tiny-mean4`, DIR as for `tiny`.
    Expected: the shape of the figures in its own `manifest.json`. The shipped run was ended early (19.7 of 22.5 million
    tokens, see its README); its loss is to be compared with that of `tiny` depth by depth, not level by level.
    """
    base = tiny()
    return dataclasses.replace(
        base,
        name="tiny-mean4",
        model=dataclasses.replace(base.model, mean_depth=4.0),
        depth=dataclasses.replace(base.depth, mean=4.0, min=2),
    )


def saturation() -> Recipe:
    """`tiny` at a budget that nine runs can afford: factbook text and chain puzzles, from one lookup to ten.

    Command: `loopwise train saturation --data DIR --out OUT --sweep depth.mean=2,4,8 --sweep train.seed=0,1,2`, or
    `make saturation DATA=DIR`; DIR as for `tiny`. The shallowest draws are not cut off, so that the mean is the mean.
    Expected: the table in `docs/study.md`.
    """
    base = tiny()
    shares = {
        "factbook": ((0, 0.30),),
        "hop1": ((0, 0.70), (200, 0.70), (300, 0.10), (700, 0.05)),
        "hop3": ((0, 0.0), (200, 0.0), (300, 0.60), (500, 0.55), (700, 0.20)),
        "hop10": ((0, 0.0), (400, 0.0), (500, 0.05), (700, 0.45)),
    }
    sources = tuple(
        dataclasses.replace(source, shares=shares[source.name]) for source in SOURCES if source.name in shares
    )
    return dataclasses.replace(
        base,
        name="saturation",
        train=dataclasses.replace(
            base.train, tokens=2_048_000, batch_size=16, dtype="float32", checkpoint_interval=200, eval_interval=250
        ),
        depth=dataclasses.replace(base.depth, min=1),
        data=dataclasses.replace(base.data, sources=sources, weigh_from=0),
    )
