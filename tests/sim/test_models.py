import pytest
import torch

from fastagg.errors import ConfigError
from fastagg.sim.models import build


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("logistic", (60,), 60 * 10 + 10),
        ("mlp", (1, 8, 8), 64 * 5 + 5 + 5 * 7 + 7 + 7 * 10 + 10),
        # Two convolutions without bias, their BatchNorms, then 7 channels of 4x4.
        ("cnn", (1, 8, 8), 9 * 5 + 2 * 5 + 9 * 5 * 7 + 2 * 7 + 7 * 16 * 10 + 10),
        ("cnn", (1, 28, 28), 9 * 5 + 2 * 5 + 9 * 5 * 7 + 2 * 7 + 7 * 196 * 10 + 10),
    ],
)
def test_models_map_inputs_to_logits_with_the_expected_parameters(name, shape, parameters):
    model = build(name, shape, classes=10, widths=[5, 7], seed=0)
    assert model(torch.zeros(3, *shape)).shape == (3, 10)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_the_weights_depend_on_the_seed_alone_and_torch_is_left_as_it_was():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    models = [build("mlp", (4,), 2, [3], seed) for seed in (0, 0, 1)]
    assert torch.equal(torch.rand(3), expected)
    flat = [torch.nn.utils.parameters_to_vector(model.parameters()) for model in models]
    assert torch.equal(flat[0], flat[1])
    assert not torch.equal(flat[0], flat[2])


def test_unfitting_models_are_refused():
    with pytest.raises(ConfigError, match="needs images"):
        build("cnn", (60,), 10, [4], seed=0)
    with pytest.raises(ConfigError, match="'resnet' is unknown"):
        build("resnet", (60,), 10, [4], seed=0)
