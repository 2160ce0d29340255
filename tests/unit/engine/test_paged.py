"""Paged attention against plain attention over contiguous memory, in both storage forms."""

import pytest
import torch
import torch.nn.functional as F

from loopwise.config import ModelConfig
from loopwise.engine.paged import PagedRows
from loopwise.engine.pool import KVPool
from loopwise.model.kv_layout import kv_layout
from loopwise.model.recurrent import RecurrentLM

HEADS, KV, WIDTH, ROWS, BLOCKS = 4, 2, 8, 3, 9


def pool_of(columns: bool, device: str = "cpu", dtype: torch.dtype = torch.float32, size: int = WIDTH) -> KVPool:
    shape = ModelConfig(
        vocab_size=11, d_model=32, num_heads=HEADS, num_kv_heads=KV, d_ff=8, prelude_layers=1, core_layers=1,
        coda_layers=1, context=64, max_depth=4,
    )  # fmt: skip
    model = RecurrentLM(shape).to(device, dtype)
    layout = kv_layout("depth_indexed")
    return KVPool(model, layout, max_depth=4, blocks=BLOCKS, block_size=size, columns=columns)


def compare(pool: KVPool, depth: int, window: int, tolerance: float) -> None:
    """Rows of lengths 5, 17 and 24 positions in scattered blocks, at one depth each, against their own history."""
    device, dtype, size = pool.keys[0].device, pool.keys[0].dtype, pool.size
    generator = torch.Generator().manual_seed(0)
    table = torch.randperm(BLOCKS, generator=generator).view(ROWS, -1).to(device)
    depths = torch.tensor([depth, 1, 4], device=device)
    lengths = [5, 2 * size + 1, 3 * size]
    keys, values = (torch.randn(ROWS, 3 * size, KV, WIDTH, generator=generator).to(device, dtype) for _ in range(2))
    q = torch.randn(ROWS, HEADS, WIDTH, generator=generator).to(device, dtype)
    for row, length in enumerate(lengths):
        at = torch.arange(length - 1, device=device)
        block = table[row, at // size] + pool.plane(depths[row].expand(len(at)))
        pool.write(1, block, at % size, keys[row, : length - 1], values[row, : length - 1])
    last = torch.tensor([n - 1 for n in lengths], device=device)
    ctx = PagedRows(pool, HEADS, KV).at(last, table, pool.plane(depths), None)
    ctx.windows = (0, window, 0)
    rows = torch.arange(ROWS, device=device)
    out = ctx.attend(1, q, keys[rows, last], values[rows, last])
    for row, length in enumerate(lengths):
        first = max(0, length - window) if window else 0
        k, v = (t[row, first:length].transpose(0, 1)[None] for t in (keys, values))
        plain = F.scaled_dot_product_attention(q[row, :, None][None], k, v, enable_gqa=True)[0, :, 0]
        torch.testing.assert_close(out[row], plain, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("columns", [True, False])
def test_rows_see_their_own_past_at_their_own_depth(columns, window):
    compare(pool_of(columns), 2, window, 1e-5)


def test_bfloat16_gathers():
    compare(pool_of(False, dtype=torch.bfloat16), 2, 0, 2e-2)


@pytest.mark.parametrize("columns", [True, False])
def test_settling_copies_what_a_row_left_to_the_planes_it_may_look_at(columns):
    pool = pool_of(columns)
    block, place = torch.tensor([3, 5]), torch.tensor([1, 2])
    depth, deepest = torch.tensor([2, 3]), torch.tensor([4, 3])
    k = torch.randn(2, KV, WIDTH)
    pool.write(1, block + pool.plane(depth), place, k, 2 * k)
    pool.settle(block, place, depth, deepest)
    for row, planes in ((0, (1, 2, 3)), (1, (2,))):
        for plane in range(4):
            found = pool.read(1, (block[row] + plane * pool.blocks)[None])
            for tensor, factor in zip(found, (1, 2), strict=True):
                expected = factor * k[row] if plane in planes else torch.zeros(KV, WIDTH)
                torch.testing.assert_close(tensor[:, place[row]], expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("window", [0, 4])
def test_varlen_attention_on_cuda(window):
    """The kernel wants widths of at least 8 and pages of 16 positions."""
    pool = pool_of(False, "cuda", torch.bfloat16, size=16)
    assert PagedRows(pool, HEADS, KV).varlen
    compare(pool, 2, window, 2e-2)
