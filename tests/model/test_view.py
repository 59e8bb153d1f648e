import pytest
import torch
from conftest import view


def test_losses_of_one_name_add_up_and_views_of_a_pass_share_them() -> None:
    seen = view(3)
    seen.add_loss("balance", torch.tensor(2.0))
    seen.add_loss("balance", torch.tensor(5.0))
    assert seen.auxiliary["balance"] == 7


def test_a_view_is_causal_or_has_a_mask() -> None:
    with pytest.raises(ValueError, match="causal or has a mask, got both"):
        view(3, causal=True, mask=torch.ones(3, 3, dtype=torch.bool))
