"""Shared by CTC recipes on speech and on handwriting: their loss, and traces of alignments."""

from __future__ import annotations

import torch
from torch import nn

from saccade.trace.trace import Trace
from saccade.zoo.decoding.stepper import Hypothesis
from saccade.zoo.models.ctc_recogniser import CtcRecogniser
from saccade.zoo.objectives.ctc_loss import BLANK, ctc_lattice, ctc_loss
from saccade.zoo.tasks.speech import FrameBatch, Frames
from saccade.zoo.tasks.tokenizers import CharacterTokenizer
from saccade.zoo.training.job import LossOut, to_device_of

NOTHING = "·"  # how a blank is written


def ctc_of(model: nn.Module) -> CtcRecogniser:
    """The model as a CTC recogniser."""
    assert isinstance(model, CtcRecogniser), f"no CTC but {type(model).__name__}"
    return model


def recogniser_loss(model: nn.Module, batch: FrameBatch) -> LossOut:
    """Loss in nats per symbol, summed over all paths that collapse to the text."""
    said = ctc_of(model)(*batch.source)
    found = ctc_loss(said.values, said.mask, batch.text, batch.text_mask)
    return LossOut(found.loss, found.n_symbols, {"impossible": float(found.n_impossible)})


def log_probs_of(model: nn.Module, source: Frames) -> Frames:
    """Log-probabilities of the symbols at each step, on the CPU, where they are decoded."""
    said = ctc_of(model)(*to_device_of(model, source))
    return Frames(said.values.cpu(), said.mask.cpu())


def lattice_traces(
    said: Frames, found: Hypothesis, tokenizer: CharacterTokenizer, *, labels: tuple[str, ...]
) -> list[Trace]:
    """Two traces of one recording: the lattice of its text, and the outputs of each step.

    The lattice has a row for each symbol of the text, with blanks around: dark where paths that
    collapse to the text are likely. The outputs of a CTC network are peaked, so its lattice is
    narrow.

    Args:
        said: A row of log-probabilities.
        labels: One per step.
    """
    text = torch.tensor([found.ids], dtype=torch.long)
    lattice = ctc_lattice(*said, text, torch.ones_like(text, dtype=torch.bool))
    written = tokenizer.decode(found.ids)
    states = lattice.states[0].tolist()
    names = [NOTHING if each == BLANK else tokenizer.labels([each])[0] for each in states]
    symbols = [BLANK, *dict.fromkeys(found.ids)]
    return [
        Trace(
            kind="lattice",
            steps=tuple(names),
            memory=labels,
            weights=lattice.occupancy[0].T,
            title=written,
            meta={"log_likelihood": lattice.log_likelihood.item()},
        ),
        Trace(
            kind="outputs",
            steps=(NOTHING, *tokenizer.labels(symbols[1:])),
            memory=labels,
            weights=said.values[0][:, symbols].exp().T,
            title=written,
        ),
    ]
