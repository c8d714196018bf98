"""Small models to decode, and all they can say, found by brute force."""

import itertools
import math
from typing import NamedTuple

import torch
from torch import nn

from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.tasks.vocabulary import BOS, EOS

D_HIDDEN, KEYS = 7, 3


class ReaderMemory(NamedTuple):
    keys: torch.Tensor
    name: torch.Tensor  # of one axis only, as masks and lengths are


class ReaderState(NamedTuple):
    hidden: torch.Tensor
    nested: tuple[torch.Tensor, None, int]


class Reader(nn.Module):
    """A random recurrent network that attends to its source; all of the past matters to it."""

    def __init__(self, d_vocab=5, seed=0, sharpness=3.0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embed = nn.Embedding(d_vocab, D_HIDDEN)
            self.cell = nn.GRUCell(2 * D_HIDDEN, D_HIDDEN)
            self.out = nn.Linear(D_HIDDEN, d_vocab)
            for weight in self.parameters():
                nn.init.normal_(weight, std=0.7)
        self.sharpness = sharpness
        self.rows: list[tuple[int, int]] = []  # of state and of memory, at every step

    def start(self, source):
        keys = torch.tanh(source)  # [sentence, key_pos, d]
        count = torch.zeros(len(source))
        memory = ReaderMemory(keys, count)
        return Started(memory, ReaderState(keys.mean(1), (count, None, 3)))

    def step(self, tokens, memory, state):
        self.rows.append((len(tokens), len(memory.keys)))
        assert len(tokens) == len(state.hidden) == len(state.nested[0])
        assert len(memory.keys) == len(memory.name)
        query = state.hidden.unflatten(0, (len(memory.keys), -1))  # [sentence, beam, d]
        weights = (query @ memory.keys.transpose(1, 2)).softmax(-1)
        context = (weights @ memory.keys).flatten(0, 1)
        hidden = self.cell(torch.cat([self.embed(tokens), context], dim=-1), state.hidden)
        count, none, number = state.nested
        return Stepped(
            log_probs=(self.sharpness * self.out(hidden)).log_softmax(-1),
            state=ReaderState(hidden, (count + 1, none, number)),
            weights=weights.flatten(0, 1),
        )


class Markov:
    """What follows a symbol, from a table of probabilities; the source is how many sentences."""

    def __init__(self, table, stop=None):
        self.log_probs = torch.as_tensor(table).log()
        self.stop = stop  # log-odds of stopping, by the symbol before

    def start(self, source):
        return Started(None, torch.zeros(source))

    def step(self, tokens, _memory, state):
        stop = None if self.stop is None else self.stop[tokens]
        return Stepped(self.log_probs[tokens], state + 1, stop=stop)


def sources(n, seed=0):
    return torch.randn(n, KEYS, D_HIDDEN, generator=torch.Generator().manual_seed(seed))


class Said(NamedTuple):
    ids: tuple[int, ...]
    log_prob: float
    weights: torch.Tensor | None


@torch.no_grad()
def follow(stepper, source, ids):
    """The log-probability of one sequence of one sentence, symbol by symbol."""
    memory, state = stepper.start(source)
    total, token, weights = 0.0, BOS, []
    for following in [*ids, EOS]:
        stepped = stepper.step(torch.tensor([token]), memory, state)
        total += stepped.log_probs[0, following].item()
        token, state = following, stepped.state
        weights.append(stepped.weights)
    seen = None if weights[0] is None else torch.cat(weights)
    return Said(tuple(ids), total, seen)


def everything(stepper, source, *, d_vocab, max_length):
    """All that can be said about one sentence in at most so many symbols, with its end."""
    symbols = [symbol for symbol in range(d_vocab) if symbol != EOS]
    lengths = range(max_length)
    every = (ids for n in lengths for ids in itertools.product(symbols, repeat=n))
    return [follow(stepper, source, ids) for ids in every]


def ranked(said, length_penalty):
    """Hypotheses with their scores, best first."""
    scored = [(one.log_prob / ((5 + len(one.ids) + 1) / 6) ** length_penalty, one) for one in said]
    return sorted(scored, key=lambda pair: -pair[0])


@torch.no_grad()
def beam_by_loops(stepper, source, *, size, max_length, length_penalty):
    """Beam search of one sentence as it is told in a lecture; it never stops early."""
    start = stepper.start(source)
    going = [((), 0.0, start.state, BOS)]
    ended = []
    for step in range(1, max_length + 1):
        found = []
        for ids, log_prob, state, token in going:
            stepped = stepper.step(torch.tensor([token]), start.memory, state)
            for symbol, more in enumerate(stepped.log_probs[0].tolist()):
                found.append((ids, log_prob + more, stepped.state, symbol))
        found.sort(key=lambda one: -one[1])
        last = step == max_length
        for rank, (ids, log_prob, _, symbol) in enumerate(found):
            if symbol == EOS and (rank < size or last) and log_prob > -math.inf:
                ended.append(Said(ids, log_prob, None))
        open_ones = [one for one in found if one[3] != EOS][:size]
        going = [((*ids, symbol), p, state, symbol) for ids, p, state, symbol in open_ones]
    return ranked(ended, length_penalty)
