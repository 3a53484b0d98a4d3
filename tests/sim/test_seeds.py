"""Single draws are those of NumPy's generators."""

import random

import numpy as np
import pytest

from fastagg.sim.seeds import below, generator, integer, permutations, uniform, words


def test_single_draws_are_those_of_a_fresh_generator():
    draw = random.Random(0)
    for _ in range(2000):
        key = (draw.randrange(2**31), "stream", draw.randrange(10**6), draw.randrange(10**6))
        assert uniform(*key) == generator(*key).random()
        count = draw.choice([1, 2, 3, 50, 2**31 - 1, 3 * 2**30, 2**32 - 1, draw.randrange(1, 2**32)])
        assert below(count, *key) == generator(*key).integers(count)
        assert integer(*key) == generator(*key).integers(2**31 - 1)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 29, 50, 1000, 70_001])
def test_permutations_are_those_of_a_generator(size):
    for number in range(20):
        numpy = generator(5, "batches", number, size)
        expected = np.concatenate([numpy.permutation(size) for _ in range(3)])
        assert permutations(3, size, words(5, "batches", number, size)).tolist() == expected.tolist()


@pytest.mark.parametrize("other", [(1, "a", 2), (0, "b", 2), (0, "a", 3), (0, "a", 2, 0)])
def test_seed_stream_and_key_all_count(other):
    assert uniform(0, "a", 2) != uniform(*other)
