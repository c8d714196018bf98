"""What a system is trained towards."""

from saccade.objectives.baselines import (
    LabelledBaseline,
    LearnedBaseline,
    MovingAverage,
    of_right_answer,
)
from saccade.objectives.cloze import cloze_loss
from saccade.objectives.ctc import BLANK, CtcLoss, ctc_loss
from saccade.objectives.ctc_lattice import CtcLattice, ctc_best_path, ctc_lattice
from saccade.objectives.elbo import Elbo, bernoulli_elbo, gaussian_kl
from saccade.objectives.likelihood import TokenLoss, token_loss
from saccade.objectives.margin import margin_ranking
from saccade.objectives.professor_forcing import Behaviour, Discriminator, professor_forcing
from saccade.objectives.reinforce import (
    answers_loss,
    hybrid_loss,
    reinforce_loss,
    returns_to_go,
    stepwise_loss,
)
from saccade.objectives.scheduled_feeding import (
    choose_fed,
    exponential_feeding,
    inverse_sigmoid_feeding,
    linear_feeding,
)
from saccade.objectives.sequence_likelihood import sequence_log_probs
from saccade.objectives.variational import exact_bound, marginal_log_likelihood, sampled_bound

__all__ = [
    "BLANK",
    "Behaviour",
    "CtcLattice",
    "CtcLoss",
    "Discriminator",
    "Elbo",
    "LabelledBaseline",
    "LearnedBaseline",
    "MovingAverage",
    "TokenLoss",
    "answers_loss",
    "bernoulli_elbo",
    "choose_fed",
    "cloze_loss",
    "ctc_best_path",
    "ctc_lattice",
    "ctc_loss",
    "exact_bound",
    "exponential_feeding",
    "gaussian_kl",
    "hybrid_loss",
    "inverse_sigmoid_feeding",
    "linear_feeding",
    "margin_ranking",
    "marginal_log_likelihood",
    "of_right_answer",
    "professor_forcing",
    "reinforce_loss",
    "returns_to_go",
    "sampled_bound",
    "sequence_log_probs",
    "stepwise_loss",
    "token_loss",
]
