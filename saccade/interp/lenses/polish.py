"""Gradient steps on KL(model || lens) from the closed form, for all heads of a model at once.

The KL is convex in the lens, so there is one minimum; the only question is the cost of reaching it.
Five things keep it low:

- z is whitened, so that one step size suits every head.
- The gradient of a step passes through the unembedding once per head, not once per position:
  ``logits = z (A W_U^T)`` is summed as a product of z with the d_head x tokens matrix.
- A step uses a few positions of many windows (`Ahead`): neighbours are similar, and the activation
  of some heads is nearly constant within a window.
- Tokens are sampled (`sample_tokens`): sums over the vocabulary are unbiased, and a softmax, as
  the ratio of two of them, is nearly so if the certain tokens have nearly all of its mass.
- Plain momentum, not Adam: it learns the directions in which the tokens differ most first, and
  those that are mostly noise last. Each head keeps the weights that were best on held-out text,
  which may also be the average of the first and the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.distributed import Processes
from saccade.interp.heads.capture import capture
from saccade.interp.lenses.batches import windows_of_step
from saccade.interp.lenses.closed_form import solve_gathered
from saccade.interp.lenses.gather import Progress
from saccade.interp.lenses.head_lens import HeadLens
from saccade.interp.lenses.held_out import HeldOut, SampledTokens, sample_tokens
from saccade.interp.lenses.statistics import Statistics

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.corpus import Corpus
    from saccade.interp.lenses.gather import Checkpoint, Fit


# The training text of the polish: a few positions of many windows at each step.

# Every other position: neighbours are similar, so this loses less than reading half as much text.
POSITION_STRIDE = 2
# Each step uses positions from the windows of this many steps. With 1 (eight windows per step) the
# noise of a step is so large for some heads that they end worse than they began.
AHEAD = 4


class Read(NamedTuple):
    """The activations of the heads and the final states at some positions."""

    z: dict[int, Float[Tensor, "n head d_head"]]
    final: Float[Tensor, "n d_model"]


class Ahead:
    """The activations for the text of a step and of the next steps.

    Each window is read once. A quarter of its positions is used in its own step, the others in the
    steps before it.
    """

    def __init__(
        self,
        model: LanguageModel,
        corpus: Corpus,
        processes: Processes,
        *,
        rows: int,
        seed: int,
    ) -> None:
        self.model, self.corpus, self.processes = model, corpus, processes
        self.rows, self.seed = rows, seed
        self.parts: dict[int, list[Read]] = {}

    def at(self, step: int) -> Read:
        """The positions that this process uses in a step."""
        for each in range(step, step + AHEAD):
            if each not in self.parts:
                self.parts[each] = self._read(each)
        some = [self.parts[step + k][k] for k in range(AHEAD)]
        del self.parts[step]
        z = {layer: torch.cat([read.z[layer] for read in some]) for layer in some[0].z}
        return Read(z, torch.cat([read.final for read in some]))

    def _read(self, step: int) -> list[Read]:
        n_windows, length = self.corpus.windows.shape
        windows = windows_of_step(n_windows, step, rows=self.rows, seed=self.seed)
        mine = windows[self.processes.rank :: self.processes.world]
        if not len(mine):
            return [self._nothing()] * AHEAD
        ids = self.corpus.windows[mine].to(self.model.device)
        captured = capture(self.model, ids)
        # Even positions of some windows and odd positions of others, because windows may begin
        # alike; in the next epoch the other way round.
        offset = (mine + (step - 1) * self.rows // n_windows) % POSITION_STRIDE
        first = self.model.encoding.n_skipped
        column = POSITION_STRIDE * torch.arange(max(1, (length - first) // POSITION_STRIDE))
        place = (first + column + offset[:, None]).clamp_max(length - 1)
        is_text = self.model.is_text(ids).cpu().gather(1, place)

        def part(activation: Tensor, k: int) -> Tensor:
            row, at = is_text[:, k::AHEAD].nonzero().unbind(1)
            return activation[
                row.to(activation.device), place[:, k::AHEAD][row, at].to(activation.device)
            ]

        return [
            Read(
                {layer: part(activation, k).float() for layer, activation in captured.z.items()},
                part(captured.final, k).float(),
            )
            for k in range(AHEAD)
        ]

    def _nothing(self) -> Read:
        """For a process without a window in a step."""
        final = torch.zeros(0, self.model.d_model, device=self.model.device)
        layers = self.model.layers
        return Read({at.index: final.new_zeros(0, at.n_heads, at.d_head) for at in layers}, final)


WHITENING_RIDGE = 0.1
MOMENTUM = 0.9
WARM_UP = 5
CHOICES = 3


@dataclass(frozen=True, kw_only=True)
class PolishConfig:
    """Hyperparameters of the polish."""

    steps: int = 80
    """Number of gradient steps."""
    rows: int = 8
    """Windows of text per step."""
    tokens: int = 4096
    """Vocabulary tokens that a step sums over."""
    learning_rate: float = 0.2
    """Step size in whitened coordinates."""
    seed: int = 0
    """Seed of the text order and of the sampled tokens."""


@dataclass
class LayerState:
    """The lenses of one layer while they are polished, in whitened coordinates.

    The bias is the last row of ``weight``: the weight of a feature that is always one.
    """

    lens: HeadLens
    mean: Float[Tensor, "head d_head"]
    whiten: Float[Tensor, "head d_head d_head"]
    start: Float[Tensor, "head feature d_model"]
    weight: Float[Tensor, "head feature d_model"]
    velocity: Float[Tensor, "head feature d_model"]
    best_kl: Float[Tensor, " head"]
    best: Float[Tensor, "head feature d_model"]

    @classmethod
    def of(cls, lens: HeadLens, statistics: Statistics, layer: int) -> LayerState:
        """Change to coordinates in which z has mean zero and (nearly) unit covariance."""
        mean = statistics.mean(f"{layer}.z")
        values, vectors = torch.linalg.eigh(statistics.covariance(layer, "zz"))
        values = values.clamp_min(0)  # rounding can make some slightly negative
        values = values + WHITENING_RIDGE * values.mean(-1, keepdim=True) + 1e-30
        device = lens.weight.device
        whiten = (vectors * values.rsqrt()[:, None]).float().to(device)
        unwhiten = (vectors * values.sqrt()[:, None]).transpose(1, 2).float().to(device)
        mean = mean.float().to(device)
        bias = lens.bias.detach() + torch.einsum("hi,hid->hd", mean, lens.weight.detach())
        weight = torch.cat([unwhiten @ lens.weight.detach(), bias[:, None]], dim=1)
        n_heads = len(weight)
        return cls(
            lens=lens,
            mean=mean,
            whiten=whiten,
            start=weight.clone(),
            weight=weight,
            velocity=torch.zeros_like(weight),
            best_kl=torch.full((n_heads,), torch.inf),
            best=weight.clone(),
        )

    def write(self, weight: Float[Tensor, "head feature d_model"]) -> None:
        """Put a weight in whitened coordinates into the lens."""
        plain = self.whiten @ weight[:, :-1]
        self.lens.weight.data.copy_(plain)
        self.lens.bias.data.copy_(weight[:, -1] - torch.einsum("hi,hid->hd", self.mean, plain))

    def features(self, z: Float[Tensor, "n head d_head"]) -> Float[Tensor, "head n feature"]:
        """The inputs of the weight: whitened z, and a constant one."""
        white = (z - self.mean).transpose(0, 1) @ self.whiten
        return torch.nn.functional.pad(white, (0, 1), value=1.0)

    def choose(
        self, held_out: HeldOut, layer: int, weight: Float[Tensor, "head feature d_model"]
    ) -> None:
        """Keep, for each head, the best weight on held-out text so far."""
        self.write(weight)
        kl = held_out.kl(self.lens, layer)
        better = kl < self.best_kl
        self.best_kl = torch.where(better, kl, self.best_kl)
        chosen = better.to(weight.device)[:, None, None]
        self.best = torch.where(chosen, weight, self.best)


def polish_solved(fit: Fit) -> dict[int, HeadLens]:
    """Lenses in closed form, polished on the text they were solved from."""
    model, gathered, asked = fit.model, fit.gathered, fit.config
    lenses = solve_gathered(model, gathered, asked.seed)
    held_out = HeldOut.of(model, gathered.held_out(), fit.baseline, seed=asked.seed)
    with fit.unfinished.stage("polishing") as checkpoint:
        polish(
            model,
            lenses,
            gathered.statistics,
            held_out,
            fit.text,
            config=PolishConfig(rows=asked.rows, seed=asked.seed, **asked.given_numbers()),
            processes=fit.processes,
            checkpoint=checkpoint,
            progress=fit.progress,
        )
    return lenses


# One argument more than the lint limit: those of `train`, the sums and the held-out text.
@torch.no_grad()
def polish(  # noqa: PLR0913
    model: LanguageModel,
    lenses: dict[int, HeadLens],
    statistics: Statistics,
    held_out: HeldOut,
    corpus: Corpus,
    *,
    config: PolishConfig,
    processes: Processes,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> None:
    """Improve lenses in place; no head ends worse on the held-out text than it began.

    Args:
        corpus: the training text; must not contain the held-out rows.
    """
    states = {layer: LayerState.of(lens, statistics, layer) for layer, lens in lenses.items()}
    done = _restore(states, checkpoint, processes)
    if done == 0:
        for layer, state in states.items():
            state.choose(held_out, layer, state.weight)
    choose_at = {round(config.steps * (k + 1) / CHOICES) for k in range(CHOICES)}
    ahead = Ahead(model, corpus, processes, rows=config.rows, seed=config.seed)
    for step in range(done + 1, config.steps + 1):
        _step(ahead, states, step, config=config)
        if step in choose_at:
            for layer, state in states.items():
                state.choose(held_out, layer, state.weight)
        if progress:
            progress("polishing", step, config.steps)
        if checkpoint:
            checkpoint.save_sometimes(lambda n=step: _tensors(states, n), together=processes)
    for layer, state in states.items():
        state.choose(held_out, layer, (state.start + state.weight) / 2)
        state.write(state.best)


def _step(ahead: Ahead, states: dict[int, LayerState], step: int, *, config: PolishConfig) -> None:
    model, processes = ahead.model, ahead.processes
    z, final = ahead.at(step)
    tokens, teacher, n = teacher_of(model, final, step, config=config, processes=processes)
    vectors = model.unembedding.weight[tokens.ids].float()
    rate = config.learning_rate * min(1.0, step / WARM_UP)
    # Decays over the second half, so that the noise of single steps averages out.
    rate *= min(1.0, max(0.05, 2 * (1 - step / config.steps)))
    for layer, state in states.items():
        gradient = gradient_of(state, z[layer], vectors, tokens, teacher) / n
        processes.add_up([gradient])
        state.velocity.mul_(MOMENTUM).add_(gradient)
        state.weight.sub_(gradient + MOMENTUM * state.velocity, alpha=rate)


def teacher_of(
    model: LanguageModel,
    final: Float[Tensor, "n d_model"],
    step: int,
    *,
    config: PolishConfig,
    processes: Processes,
) -> tuple[SampledTokens, Float[Tensor, "n token"], int]:
    """The tokens of a step, the same in every process, with the model's probabilities."""
    p = model.unembedding.logits(final).float().softmax(-1)  # [n, d_vocab]
    likely = p.amax(0) if len(p) else p.new_zeros(p.shape[1])
    total = torch.cat([p.sum(0), p.new_tensor([len(p)])]).cpu()
    likely = likely.cpu()
    processes.largest(likely)
    processes.add_up([total])
    n = int(total[-1])
    tokens = sample_tokens(
        likely,
        total[:-1] / n,
        n_tokens=min(config.tokens, p.shape[1]),
        generator=torch.Generator().manual_seed(config.seed * 1_000_003 + step),
    )
    tokens = SampledTokens(tokens.ids.to(p.device), tokens.log_weight.to(p.device))
    return tokens, p[:, tokens.ids] * tokens.log_weight.exp(), n


def gradient_of(
    state: LayerState,
    z: Float[Tensor, "n head d_head"],
    vectors: Float[Tensor, "token d_model"],
    tokens: SampledTokens,
    teacher: Float[Tensor, "n token"],
) -> Float[Tensor, "head feature d_model"]:
    """The gradient of the summed KL, explicit: (lens minus model probabilities) times z."""
    white = state.features(z)  # [head, n, feature]
    by_token = (state.weight.flatten(0, 1) @ vectors.T).unflatten(0, state.weight.shape[:2])
    base = state.lens.token_bias[:, tokens.ids] + tokens.log_weight  # [head, token]
    surplus = torch.baddbmm(base[:, None], white, by_token).softmax(-1)  # [head, n, token]
    surplus -= teacher
    slope = white.transpose(1, 2) @ surplus  # [head, feature, token]
    return (slope.flatten(0, 1) @ vectors).view_as(state.weight)


def _tensors(states: dict[int, LayerState], step: int) -> dict[str, Tensor]:
    names = ("weight", "velocity", "best_kl", "best")
    named = {f"{layer}.{n}": getattr(state, n) for layer, state in states.items() for n in names}
    return {**named, "done": torch.tensor(step)}


def _restore(
    states: dict[int, LayerState], checkpoint: Checkpoint | None, processes: Processes
) -> int:
    """Restore the state saved by the first process; all processes get the same state and step."""
    saved = checkpoint.load() if checkpoint and processes.is_first else None
    named = _tensors(states, 0)
    for name, value in (saved or {}).items():
        named[name].copy_(value)
    processes.from_first([named["done"]])
    if done := int(named.pop("done")):
        processes.from_first(named.values())
    return done
