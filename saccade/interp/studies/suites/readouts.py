"""The first tokens that residual streams and single heads read out to, by every lens at once.

One run of a prompt with a changed copy of its last token for every head
(`saccade.interp.effects.copies`) gives the streams, the heads' activations and the exact effects.
Each of them is turned into logits, of which only the first tokens are kept: for 270 heads all
logits of one prompt are 53 MB, the first ten tokens 20 kB.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import LensError, SaccadeError
from saccade.interp.effects.copies import run_copies
from saccade.interp.effects.effects import compare
from saccade.interp.effects.replacement import Replacement
from saccade.interp.effects.target import LOGIT_ROWS
from saccade.interp.heads.onednn import fast_products
from saccade.interp.heads.prompt_batches import prompt_batches
from saccade.interp.heads.residual_path import direct_states
from saccade.interp.lenses.jacobian_lens import JacobianLens, fit_jacobian, residual_jacobians
from saccade.interp.lenses.lens_set import Lenses, lenses_if_fitted
from saccade.interp.lenses.residual_lenses import TunedLens, has_direct_path, solve_tuned
from saccade.interp.lenses.self_text import sampling_fingerprint, write_corpus
from saccade.interp.lenses.top_tokens import largest
from saccade.interp.studies.roles.role import head_changes
from saccade.interp.studies.suites.suite import Progress
from saccade.store.atomic import cache_dir
from saccade.store.folder import read_folder, write_folder

if TYPE_CHECKING:
    from saccade.interp.effects.joined_pass import CopyRun
    from saccade.interp.heads.model import LanguageModel

TOP = 10
# Text that the tuned and Jacobian lenses are computed from: 28 positions for each dimension of the
# default model. The model writes it, so that no item and no data set is in it.
TEXT_TOKENS, WINDOW, TEXT_SEED = 16_384, 96, 5
BATCH_TOKENS = 1024  # with the copies: three short prompts of the default model a pass

LOGIT, TUNED, JACOBIAN = "layers: logit lens", "layers: tuned lens", "layers: Jacobian lens"
HEAD_DIRECT, HEAD_JACOBIAN = "heads: unembedding", "heads: Jacobian lens"
HEAD_EFFECT, HEAD_WEIGHTED = "heads: effect", "heads: effect, weighted"
HEAD_LENS, HEAD_GAIN = "heads: fitted lens", "heads: fitted lens, over baseline"
RANDOM = "random directions, one a head"
Top: TypeAlias = Int[Tensor, "item unit top"]


@dataclass(frozen=True, kw_only=True)
class TextLenses:
    """Lenses that are computed from a text, by layer."""

    tuned: Mapping[int, TunedLens]
    jacobian: Mapping[int, Float[Tensor, "d_model d_model"]]
    """From the stream after the layer to the input of the final norm."""
    heads: Mapping[int, JacobianLens]
    """From a head's activation to the final state."""

    @classmethod
    def of(cls, model: LanguageModel, progress: Progress | None = None) -> TextLenses:
        """From text that the model writes: computed once for a model, and cached."""
        window = min(WINDOW, model.max_positions or WINDOW)
        text = sampling_fingerprint(
            model, rows=TEXT_TOKENS // window, window=window, seed=TEXT_SEED, temperature=1.0
        )
        folder = cache_dir() / "text-lenses" / f"{model.fingerprint}-{text}"
        with contextlib.suppress(SaccadeError):  # not there yet, or damaged: computed again
            return cls._stored(model, read_folder(folder, needs=[_FILE]).tensors[_FILE])
        if progress is not None:
            progress("writing text for lenses", 0, 1)
        corpus = write_corpus(model, n_tokens=TEXT_TOKENS, window=window, seed=TEXT_SEED)
        windows = corpus.windows
        nothing = torch.zeros(model.d_vocab, device=model.unembedding.weight.device)
        found = cls(
            tuned=solve_tuned(model, windows.split(16)),
            jacobian=residual_jacobians(model, windows, progress=progress),
            heads=fit_jacobian(model, windows, nothing, progress=progress),
        )
        with contextlib.suppress(SaccadeError):  # a cache that cannot be written is not needed
            folder.parent.mkdir(parents=True, exist_ok=True)
            write_folder(folder, {"kind": "text-lenses"}, {_FILE: found._tensors()})
        return found

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"{layer}.jacobian": each for layer, each in self.jacobian.items()}
        for layer, lens in self.tuned.items():
            tensors[f"{layer}.tuned.weight"] = lens.translator.weight.detach().cpu()
            tensors[f"{layer}.tuned.bias"] = lens.translator.bias.detach().cpu()
        for layer, lens in self.heads.items():
            tensors[f"{layer}.heads.weight"] = lens.inner.weight.detach().cpu()
            tensors[f"{layer}.heads.bias"] = lens.inner.bias.detach().cpu()
        return tensors

    @classmethod
    def _stored(cls, model: LanguageModel, tensors: Mapping[str, Tensor]) -> TextLenses:
        tuned: dict[int, TunedLens] = {}
        heads: dict[int, JacobianLens] = {}
        for at in model.layers:
            tuned[at.index] = TunedLens.start(model, at.index).requires_grad_(False)
            heads[at.index] = JacobianLens.start(model, at.index).requires_grad_(False)
            for name in ("weight", "bias"):
                to = getattr(tuned[at.index].translator, name)
                to.copy_(tensors[f"{at.index}.tuned.{name}"])
                to = getattr(heads[at.index].inner, name)
                to.copy_(tensors[f"{at.index}.heads.{name}"])
        jacobian = {at.index: tensors[f"{at.index}.jacobian"] for at in model.layers}
        return cls(tuned=tuned, jacobian=jacobian, heads=heads)


_FILE = "text-lenses.safetensors"


class Predicted(NamedTuple):
    """What lenses and the model itself read out at the last token of each prompt."""

    top: Mapping[str, Top]
    """By method: the first tokens of every unit, a layer or a head."""
    first: Int[Tensor, " item"]
    """The model's likeliest next token."""


@dataclass(frozen=True, kw_only=True)
class Readouts:
    """Everything that reads a model's streams and heads out to tokens."""

    model: LanguageModel
    text: TextLenses
    replacement: Replacement
    """What effects are measured against: the mean over text that the model writes."""
    lenses: Lenses | None
    """Lenses of heads that a user has fitted."""
    left_out: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: LanguageModel, progress: Progress | None = None) -> Readouts:
        """Those of a model; its fitted lenses are those of the default path."""
        left_out: dict[str, str] = {}
        lenses = None
        try:
            lenses = lenses_if_fitted(None, model)
            if lenses is None:
                left_out[HEAD_LENS] = "no lenses are fitted yet: run `saccade lens fit`"
            elif any(lens.site != "head" for lens in lenses.by_layer.values()):
                left_out[HEAD_LENS] = f"the fitted {lenses.provenance.kind} lenses read no heads"
                lenses = None
        except LensError as error:
            left_out[HEAD_LENS] = str(error)
        if not has_direct_path(model):
            left_out[HEAD_DIRECT] = "the heads have no direct path to the tokens"
        text = TextLenses.of(model, progress)
        replacement = Replacement.usual(model).at_last()
        return cls(
            model=model, text=text, replacement=replacement, lenses=lenses, left_out=left_out
        )

    @torch.no_grad()
    def predict(
        self, prompts: Sequence[Int[Tensor, " _"]], progress: Progress | None = None
    ) -> Predicted:
        """The first tokens at the last token of each prompt."""
        changes = head_changes(self.model, self.replacement.heads)
        batches = list(
            prompt_batches(prompts, max_tokens=BATCH_TOKENS, n_more=self.model.n_heads + 1)
        )
        found: list[Mapping[str, Tensor]] = []
        first: list[Tensor] = []
        n_done = 0
        for batch in batches:
            lengths = batch.mask.sum(1).tolist()
            run = run_copies(self.model, batch.ids.to(self.model.device), changes, lengths=lengths)
            with fast_products():
                found.append({**self._of_layers(run), **self._of_heads(run), **self._effects(run)})
                logits = self.model.unembedding.logits(run.captured.final[:, 0])
            first.append(logits.argmax(-1).cpu())
            n_done += len(batch.rows)
            if progress is not None:
                progress("reading prompts", n_done, len(prompts))
        back = torch.cat([batch.rows for batch in batches]).argsort()
        top = {name: torch.cat([each[name] for each in found])[back] for name in found[0]}
        return Predicted(top, torch.cat(first)[back])

    def random(self, *, draws: int, seed: int) -> Top:
        """The first tokens of random directions, as many as there are heads, ``draws`` times.

        Their length does not matter: it does not change the order of the tokens.
        """
        generator = torch.Generator().manual_seed(seed)
        weight = self.model.unembedding.weight
        shape = (draws, self.model.n_heads, self.model.d_model)
        directions = torch.randn(shape, generator=generator).to(weight)
        with fast_products():
            return first_tokens(directions, self.model.unembedding.linear)

    def _of_layers(self, run: CopyRun) -> dict[str, Tensor]:
        def logits(stream: Tensor) -> Tensor:
            return self.model.unembedding.logits(self.model.final_norm.normed(stream))

        streams = {layer: stream[:, 0] for layer, stream in run.captured.residual.items()}
        tuned, moved = [], []
        for layer, stream in streams.items():
            # The translation of the tuned lens alone; its norm and unembedding are those above.
            tuned.append((stream + self.text.tuned[layer].translator(stream.float())).to(stream))
            jacobian = self.text.jacobian[layer].to(stream)
            moved.append(stream @ jacobian.T)
        plain = list(streams.values())
        named = ((LOGIT, plain), (TUNED, tuned), (JACOBIAN, moved))
        return {name: first_tokens(torch.stack(each, 1), logits) for name, each in named}

    def _of_heads(self, run: CopyRun) -> dict[str, Tensor]:
        linear = self.model.unembedding.linear
        z = {layer: each[:, 0] for layer, each in run.captured.z.items()}
        states = [self.text.heads[layer].inner.hidden(each) for layer, each in z.items()]
        found = {HEAD_JACOBIAN: first_tokens(torch.cat(states, 1), linear)}
        if HEAD_DIRECT not in self.left_out:
            direct = [direct_states(self.model, run.captured, layer)[:, 0] for layer in z]
            found[HEAD_DIRECT] = first_tokens(torch.cat(direct, 1), linear)
        if self.lenses is None:
            return found
        plain, gain = [], []
        for layer, lens in self.lenses.by_layer.items():
            logits = lens(z[layer]).flatten(0, 1)  # [batch * head, d_vocab]
            shape = (len(z[layer]), -1, min(TOP, logits.shape[-1]))
            plain.append(largest(logits, shape[-1]).ids.view(shape).cpu())
            over = logits - self.lenses.baseline.to(logits)
            gain.append(largest(over, shape[-1]).ids.view(shape).cpu())
        return {**found, HEAD_LENS: torch.cat(plain, 1), HEAD_GAIN: torch.cat(gain, 1)}

    def _effects(self, run: CopyRun) -> dict[str, Tensor]:
        """By the change of a token's log-probability; and weighted, as `saccade read` orders."""
        unembedding = self.model.unembedding
        changed, weighted = [], []
        for own, states in zip(run.captured.final[:, 0], run.states, strict=True):
            plain = unembedding.logits(own).float()
            p, top = plain.softmax(-1), min(TOP, len(plain))
            rows: list[tuple[Tensor, Tensor]] = []
            for some in states.split(LOGIT_ROWS):
                moved = unembedding.logits(some).float().sub_(plain)
                # The order of the changes of log-probability is that of the logits.
                rows.append((compare(moved, p, top).promotes.ids, largest(moved.neg_(), top).ids))
            weighted.append(torch.cat([each for each, _ in rows]).cpu())
            changed.append(torch.cat([each for _, each in rows]).cpu())
        return {HEAD_EFFECT: torch.stack(changed), HEAD_WEIGHTED: torch.stack(weighted)}


def first_tokens(
    states: Float[Tensor, "item unit d_model"], logits: Callable[[Tensor], Tensor]
) -> Top:
    """The tokens with the largest logits of each state, a few states at a time."""
    found = []
    for some in states.flatten(0, 1).split(LOGIT_ROWS):
        scores = logits(some).float()
        found.append(largest(scores, min(TOP, scores.shape[-1])).ids.cpu())
    return torch.cat(found).view(*states.shape[:2], -1)
