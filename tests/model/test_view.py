import pytest
import torch
from conftest import view


def test_losses_of_one_name_add_up_and_views_of_a_pass_share_them() -> None:
    seen = view(3)
    seen.add_loss("balance", torch.tensor(2.0))
    seen.add_loss("balance", torch.tensor(5.0))
    assert seen.auxiliary["balance"] == 7


@pytest.mark.parametrize("name", ["loss", "nll", "perplexity", "learning_rate"])
def test_a_loss_cannot_have_the_name_of_another_figure(name: str) -> None:
    with pytest.raises(ValueError, match=f"an auxiliary loss cannot be called {name}"):
        view(3).add_loss(name, torch.tensor(1.0))


def test_a_view_is_causal_or_has_a_mask() -> None:
    with pytest.raises(ValueError, match="causal or has a mask, got both"):
        view(3, causal=True, mask=torch.ones(3, 3, dtype=torch.bool))
