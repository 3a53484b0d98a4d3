import leaf
import pytest
import resnet
import shakespeare
import torch

from fastagg.errors import ConfigError
from fastagg.sim.models import build
from fastagg.sim.recipes.sections import WIDTHS, Model


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


@pytest.mark.parametrize(("classes", "parameters"), [(10, 11_173_962), (100, 11_220_132)])
def test_resnet_has_its_size(classes, parameters):
    model = resnet.resnet18((3, 32, 32), classes)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, classes)


def test_femnists_network_has_its_size():
    """3x3 convolutions to 32 and 64 channels, a linear layer on 64 channels of 14x14."""
    model = leaf.cnn((1, 28, 28), 62)
    expected = 9 * 32 + 32 + 9 * 32 * 64 + 64 + 64 * 14 * 14 * 62 + 62
    assert sum(p.numel() for p in model.parameters()) == expected
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 62)
    with pytest.raises(ConfigError, match="takes 2 widths"):
        leaf.cnn((1, 28, 28), 62, [4])


def test_the_lstm_predicts_from_the_whole_text_and_has_its_size():
    model = shakespeare.NextCharacter((80,), 80)
    first, second = (4 * 256 * (before + 256) + 2 * 4 * 256 for before in (8, 256))
    assert sum(p.numel() for p in model.parameters()) == 80 * 8 + first + second + 256 * 80 + 80
    tokens = torch.arange(80).repeat(3, 1).int()
    tokens[1, 0] = 5  # the first character
    tokens[2, -1] = 5  # the last one
    logits = model(tokens)
    assert logits.shape == (3, 80)
    assert not torch.equal(logits[0], logits[1])
    assert not torch.allclose(logits[0], logits[2])


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
    with pytest.raises(ConfigError, match="takes 4 widths"):
        resnet.resnet18((3, 32, 32), 10, [64])


def test_every_model_of_a_recipe_is_built_somewhere():
    assert all(Model(name=name).widths == widths for name, widths in WIDTHS.items())
