"""Padding and static buffers of recorded launches; the recording itself where there is a GPU."""

import pytest
import torch

from loopwise.engine.graphs import Padded, powers_to
from loopwise.engine.readback import Readback
from loopwise.sampling import upload

FILLER = 5


def counter(device: str = "cpu"):
    """A launch that doubles the rows it is given, in place, and the sizes it was called at."""
    rows, sizes = torch.arange(6, dtype=torch.float32, device=device), []

    def launch(index):
        sizes.append(len(index))
        before = rows.index_select(0, index)
        rows.index_copy_(0, index, 2 * before)
        return index, None, before

    return rows, sizes, launch


def check(device: str) -> list[int]:
    """Launches of 1, 2, 3 and 4 rows at sizes 2 and 3, some of them twice: each touches its own rows, and no others."""
    rows, sizes, launch = counter(device)
    padded = Padded(launch, (3, 2), FILLER)
    expected = [0.0, 1.0, 2.0, 3.0, 4.0]
    for places in ([1], [3], [0, 2], [4, 1, 2], [3, 0, 1, 4], [4, 2]):
        index, nothing, before = padded(torch.tensor(places, device=device))
        assert nothing is None and index.tolist() == places
        assert before.tolist() == [expected[p] for p in places]
        for place in places:
            expected[place] *= 2
        assert rows[:FILLER].tolist() == expected
    return sizes


def test_launches_are_padded_to_the_next_size_and_touch_their_own_rows():
    sizes = check("cpu")
    assert sizes == [2, 2, 2, 3, 4, 2], "the four rows exceed every size and run as they are"


def test_powers():
    assert powers_to(1) == (1,) and powers_to(8) == (1, 2, 4, 8) and powers_to(12) == (1, 2, 4, 8, 12)


def test_readback_on_cpu_is_the_values():
    assert Readback(upload([1, 2], torch.device("cpu")), torch.tensor([True])).take() == [[1, 2], [True]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_recorded_launch_is_replayed_with_new_rows():
    sizes = check("cuda")
    assert sizes == [2, 2, 3, 3, 4], "each size runs twice (to warm up and to be captured), then only as a graph"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_readback_takes_what_was_there_when_it_was_made():
    values = torch.arange(1000, device="cuda")
    back = Readback(values.clone(), values * 2)
    values.fill_(0)
    assert back.take() == [list(range(1000)), list(range(0, 2000, 2))]
