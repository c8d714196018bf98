"""What recognisers of speech and of handwriting share: their loss, and pictures of alignments."""

from __future__ import annotations

import torch
from torch import nn

from saccade.trace.trace import Trace
from saccade.zoo.decoding.stepper import Hypothesis
from saccade.zoo.models.ctc_recogniser import CtcRecogniser
from saccade.zoo.models.listen_attend_spell import ListenAttendSpell
from saccade.zoo.objectives.ctc_loss import BLANK, ctc_lattice, ctc_loss
from saccade.zoo.objectives.likelihood import token_loss
from saccade.zoo.tasks.speech import FrameBatch, Frames
from saccade.zoo.tasks.tokenizers import CharacterCoder
from saccade.zoo.training.job import LossOut

NOTHING = "·"  # how a blank is written


def recogniser_loss(model: nn.Module, batch: FrameBatch, *, smoothing: float = 0.0) -> LossOut:
    """Nats a symbol: of all paths that read as the text, or of the text spelled symbol by symbol.

    Args:
        smoothing: Of a speller's targets; paths have none.
    """
    if isinstance(model, CtcRecogniser):
        said = model(*batch.source)
        ctc = ctc_loss(said.values, said.mask, batch.text, batch.text_mask)
        return LossOut(ctc.loss, ctc.n_symbols, {"impossible": float(ctc.n_impossible)})
    spelling = batch.spelling
    found = token_loss(model(batch), spelling.target_out[spelling.mask], smoothing=smoothing)
    return LossOut(found.loss, found.n_tokens, {"nats": found.nll / found.n_tokens})


def ctc_of(model: nn.Module) -> CtcRecogniser:
    """The model, which says something at every step."""
    assert isinstance(model, CtcRecogniser), f"no CTC but {type(model).__name__}"
    return model


def speller_of(model: nn.Module) -> ListenAttendSpell:
    """The model, which attends."""
    assert isinstance(model, ListenAttendSpell), f"no speller but {type(model).__name__}"
    return model


def lattice_traces(
    said: Frames, found: Hypothesis, coder: CharacterCoder, *, labels: tuple[str, ...]
) -> list[Trace]:
    """Two pictures of one recording: where its text can be, and what each step says.

    The lattice has a row for each symbol of the text, with blanks around: dark where a path that
    reads as the text is likely to be. What a CTC network says is peaked, and its lattice shows the
    little freedom that is left.

    Args:
        said: A row of log-probabilities.
        labels: One a step.
    """
    text = torch.tensor([found.ids], dtype=torch.long)
    lattice = ctc_lattice(*said, text, torch.ones_like(text, dtype=torch.bool))
    written = coder.decode(found.ids)
    states = lattice.states[0].tolist()
    names = [NOTHING if each == BLANK else coder.labels([each])[0] for each in states]
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
            steps=(NOTHING, *coder.labels(symbols[1:])),
            memory=labels,
            weights=said.values[0][:, symbols].exp().T,
            title=written,
        ),
    ]
