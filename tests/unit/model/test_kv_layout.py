"""KV layouts: planes for ints, arrays and tensors alike."""

import numpy as np
import pytest
import torch

from loopwise.config import InputError
from loopwise.model.kv_layout import LAYOUTS, kv_layout

EXPECTED = {
    "depth_indexed": lambda i, d: min(i, d) - 1,
    "last_exited": lambda i, d: min(i, d) - 1,
    "shared": lambda i, d: 0,
    "first_then_shared": lambda i, d: min(min(i, d) - 1, 1),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_planes(name):
    layout = LAYOUTS[name]
    depths = np.arange(1, 9)
    for i in range(1, 9):
        wanted = [EXPECTED[name](i, int(d)) for d in depths]
        assert [layout.read(i, int(d)) for d in depths] == wanted
        assert layout.read(i, depths).tolist() == wanted
        assert layout.read(i, torch.tensor(depths)).tolist() == wanted
        assert layout.read(torch.tensor(i), torch.tensor(depths)).tolist() == wanted
        assert layout.write(i) == EXPECTED[name](i, i)
        assert 0 <= layout.write(i) < layout.num_planes(8)


def test_a_row_reads_back_what_it_wrote():
    for layout in LAYOUTS.values():
        for i in range(1, 33):
            assert layout.read(i, i) == layout.write(i)


def test_unknown_layout():
    with pytest.raises(InputError, match="did you mean 'shared'"):
        kv_layout("shard")
