"""PonderNet-style heads: the halting distribution, and that training finds what pays."""

import pytest
import torch

from loopwise.exit.fitted import probe_value
from loopwise.exit.look import Look
from loopwise.model.recurrent import RecurrentLM
from loopwise.study.halting import geometric, halt_probabilities, train_head
from loopwise.study.joint import DEPTHS, Net, objective, shape


def test_halting_probabilities_by_hand():
    going = torch.tensor([[0.5], [0.2]])
    assert halt_probabilities(going)[:, 0].tolist() == pytest.approx([0.5, 0.4, 0.1])
    assert geometric(0.5, 3).tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])


def test_head_tells_tokens_that_need_depth_from_those_that_do_not():
    """The first feature says whether a token gains from going on; the rest is noise."""
    generator = torch.Generator().manual_seed(0)
    hard = torch.arange(200) % 2 == 0
    states = torch.randn(3, 200, 8, generator=generator)
    states[..., 0] = torch.where(hard, 3.0, -3.0)
    nll = torch.stack([torch.where(hard, 4.0 - d, 1.0 + 0.1 * d) for d in range(4)])
    head = train_head(states, nll, beta=0.001, prior=0.5, seed=0)
    going = torch.stack([probe_value(Look(s, s), i + 1, head.probe()) for i, s in enumerate(states)])
    p = halt_probabilities(going)
    assert p[3, hard].mean() > 0.9 and p[0, ~hard].mean() > 0.8


@pytest.mark.parametrize("arm", ["random", "fixed", "ponder-0.01", "router"])
def test_every_arm_has_a_finite_gradient(arm):
    net = Net(RecurrentLM(shape(64)).initialise(0), 0)
    windows = torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(0))
    objective(net, arm, windows, 0, 0).backward()
    grads = [p.grad for p in net.model.recurrence.parameters()]
    assert all(g is not None and torch.isfinite(g).all() for g in grads)
    if arm == "router":
        assert net.route.weight.grad.abs().sum() > 0
    if arm.startswith("ponder"):
        assert net.halt.weight.grad.abs().sum() > 0


def test_a_router_that_says_one_pass_makes_one():
    net = Net(RecurrentLM(shape(64)).initialise(0), 0)
    torch.nn.init.zeros_(net.route.weight)
    net.route.bias.data[:] = torch.tensor([9.0] + [0.0] * (DEPTHS - 1))
    windows = torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(0))
    nll, choice, _ = net.routed(windows)
    assert (choice == 1).all()
    assert torch.allclose(nll, net.all_nll(windows)[0][0], atol=1e-5)
