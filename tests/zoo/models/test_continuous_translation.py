import pytest
import torch

from saccade.zoo.models.continuous_translation import SentenceModel

BATCH, D = 3, 5


def folded_by_loops(kernels, words):
    """One sentence, [pos, d]: every level, column and feature by itself."""
    columns = [[float(x) for x in word] for word in words]
    level = 0
    while len(columns) > 1:
        kernel = kernels[min(level, len(kernels) - 1)][:, 0].tolist()  # [d][width]
        width = min(len(kernel[0]), len(columns))
        columns = [
            [
                torch.tensor(sum(kernel[f][i] * columns[at + i][f] for i in range(width)))
                .tanh()
                .item()
                for f in range(len(kernel))
            ]
            for at in range(len(columns) - width + 1)
        ]
        level += 1
    return torch.tensor(columns[0])


@pytest.mark.parametrize("n_kernels", [1, 2, 7])
@torch.no_grad()
def test_a_sentence_is_folded_level_by_level_until_one_column_is_left(n_kernels):
    torch.manual_seed(0)
    model = SentenceModel(D, n_kernels=n_kernels)
    lengths = [11, 1, 6, 2, 7]
    words = torch.randn(len(lengths), max(lengths), D)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    found = model(words, mask)
    for row, length in enumerate(lengths):
        expected = folded_by_loops([*model.kernels], words[row, :length])
        torch.testing.assert_close(found[row], expected)


def test_kernels_grow_by_one_word_a_level():
    model = SentenceModel(D, n_kernels=3)
    assert [kernel.shape[2] for kernel in model.kernels] == [2, 3, 4]


@torch.no_grad()
def test_the_order_of_words_matters():
    torch.manual_seed(0)
    model, words = SentenceModel(D), torch.randn(BATCH, 7, D)
    mask = torch.ones(BATCH, 7, dtype=torch.bool)
    assert not torch.allclose(model(words, mask), model(words.flip(1), mask))


@torch.no_grad()
def test_a_column_keeps_its_size_on_the_way_up():
    torch.manual_seed(0)
    model, words = SentenceModel(512), torch.randn(BATCH, 29, 512)
    size = model(words, torch.ones(BATCH, 29, dtype=torch.bool)).std()
    assert 0.1 < size < 1.0
