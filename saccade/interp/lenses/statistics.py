"""Running sums over a text, from which the lenses of every head are solved in closed form.

One forward pass serves every layer and head. The sums can be added: those of two shards of text,
two processes or two machines merge into the sums of one pass over both.

Products are summed about the means, not about zero: ``E[z f] - E[z] E[f]`` loses all precision
where a head's mean is large, and float64, which could afford that, takes twice the memory of
float32. Sums about two means are combined into one about the common mean as in Chan, Golub and
LeVeque, 1983,
"Algorithms for computing the sample variance".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.distributed import Processes
from saccade.errors import LensError

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


# Activations are taken at every other position: neighbours are similar, and the sums, which are the
# cost of a fit besides the forward pass, take half the time.
POSITION_EVERY = 2
# The model's own token probabilities are taken at only some of these positions: at all of them they
# would cost a third of the forward pass. On WikiText-2 (65,536 tokens, every other
# position) the baseline lens has 3.462 nats of held-out KL with all of them or every second, and
# 3.471 with every fourth.
PREDICTED_EVERY = 2
# The expected token vectors cost as much again, and their use tolerates more noise.
EXPECTED_EVERY = 2 * PREDICTED_EVERY
# Memory of the token probabilities at once; fewer positions make the unembedding product slower.
PREDICTED_BYTES = 256 * 2**20
# Rows of the unembedding converted to float32 at once, for models of another dtype.
TOKENS_AT_ONCE = 32768


class _Product(NamedTuple):
    """A product of the activation of a head with another vector, summed about their means."""

    name: str
    of_z: str
    other: str
    n: str

    @classmethod
    def of(cls, layer: int) -> tuple[_Product, ...]:
        """Those of one layer."""
        return (
            cls(f"{layer}.scatter.zz", f"{layer}.z", f"{layer}.z", "n"),
            cls(f"{layer}.scatter.zf", f"{layer}.z", "f", "n"),
            cls(
                f"{layer}.expected.scatter.zu",
                f"{layer}.expected.z",
                "expected.u",
                "expected.n",
            ),
        )


@dataclass
class Statistics:
    """Sums of the activations of the heads and of the final state of the model.

    ``f`` is the final normed state, ``p`` the model's predicted distribution, ``u = W_U^T p`` the
    expected token vector. ``p`` is summed over the *predicted* positions only, ``u`` over the
    *expected* ones among them. Plain sums are in float64; the sums of products (``scatter``) are
    taken about the means and in float32.
    """

    sums: dict[str, Float[Tensor, "..."]]
    layers: tuple[int, ...]

    @classmethod
    def empty(cls, model: LanguageModel) -> Statistics:
        """No text seen yet."""

        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype)

        d = model.d_model
        sums = {
            "n": zeros(1),
            "f": zeros(d),
            "predicted.n": zeros(1),
            "predicted.p": zeros(model.d_vocab),
            "expected.n": zeros(1),
            "expected.u": zeros(d),
        }
        for at in model.layers:
            heads = (at.n_heads, at.d_head)
            sums[f"{at.index}.z"] = zeros(*heads)
            sums[f"{at.index}.expected.z"] = zeros(*heads)
            for product, width in zip(_Product.of(at.index), (at.d_head, d, d), strict=True):
                sums[product.name] = zeros(*heads, width, dtype=torch.float32)
        return cls(sums=sums, layers=tuple(at.index for at in model.layers))

    @classmethod
    def from_tensors(cls, named: Mapping[str, Tensor], layers: tuple[int, ...]) -> Statistics:
        """From stored sums; products summed about zero (the old format) are converted."""
        sums = dict(named)
        for layer in layers:
            for product in _Product.of(layer):
                old = sums.pop(product.name.replace("scatter.", ""), None)
                if old is not None:
                    n = float(sums[product.n])
                    outer = _outer(sums[product.of_z], sums[product.other]) / max(n, 1.0)
                    sums[product.name] = (old.double() - outer).float()
        return cls(sums=sums, layers=layers)

    @property
    def n(self) -> int:
        """Number of positions seen."""
        return int(self.sums["n"])

    def mean(self, name: str) -> Float[Tensor, "..."]:
        """The mean of the quantity ``name``, over the positions it was summed for."""
        where = next((each for each in ("predicted.", "expected.") if each in name), "")
        return self.sums[name].double() / self.sums[f"{where}n"]

    def covariance(self, layer: int, name: str) -> Float[Tensor, "head d_head d_other"]:
        """Of z with itself ("zz"), the final state ("zf") or the expected token vector ("zu")."""
        product = next(each for each in _Product.of(layer) if each.name.endswith(f".{name}"))
        return self.mean(product.name)

    def add(
        self,
        model: LanguageModel,
        z: Mapping[int, Float[Tensor, "batch pos head d_head"]],
        final: Float[Tensor, "batch pos d_model"],
        *,
        is_text: Bool[Tensor, "batch pos"] | None = None,
        phase: Int[Tensor, " batch"] | None = None,
    ) -> None:
        """Add one batch of text: every position, and the model's predictions at some of them.

        Args:
            is_text: False = a position to leave out (a special token); none by default.
            phase: offset of the positions of each row at which predictions are taken. It should
                differ between rows: they may begin alike, and all positions have to be covered.
        """
        rows, window = final.shape[:2]
        row, column = torch.arange(rows), torch.arange(window)
        place = ((row if phase is None else phase)[:, None] // POSITION_EVERY + column).flatten()
        kept = slice(None)  # copies nothing
        if is_text is not None and not bool(is_text.all()):
            kept = is_text.flatten().nonzero()[:, 0].cpu()
        f = _rows(final, kept)  # [n, d_model]
        if len(f) == 0:
            return
        place = place[kept].to(f.device)
        predicted = (place % PREDICTED_EVERY == 0).nonzero()[:, 0]
        some = (place % EXPECTED_EVERY == 0).nonzero()[:, 0]
        u = self._add_predictions(model, f, predicted, place)
        moved_f, moved_u = self._centred("f", f), self._centred("expected.u", u)
        for layer, activation in z.items():
            flat = _rows(activation, kept)  # [n, head, d_head]
            zz, zf, zu = _Product.of(layer)
            moved = self._centred(zz.of_z, flat)
            self._add_products(zz.name, moved, moved)
            self._add_products(zf.name, moved, moved_f)
            moved = self._centred(zu.of_z, flat[some.to(flat.device)])
            self._add_products(zu.name, moved, moved_u)
        self.sums["n"] += len(f)
        self.sums["expected.n"] += len(u)

    def _add_predictions(
        self,
        model: LanguageModel,
        f: Float[Tensor, "n d_model"],
        predicted: Int[Tensor, " m"],
        place: Int[Tensor, " n"],
    ) -> Float[Tensor, "k d_model"]:
        """Add token probabilities at some positions, and expected token vectors at fewer."""
        u = [f[:0]]
        for some in predicted.split(max(1, PREDICTED_BYTES // (4 * model.d_vocab))):
            p = model.unembedding.logits(f[some]).float()  # [m, d_vocab]
            # In place: a softmax would need a second copy.
            p = p.sub_(p.amax(-1, keepdim=True)).exp_()
            p /= p.sum(-1, keepdim=True)
            self.sums["predicted.p"] += p.sum(0).to("cpu", torch.float64)
            expected = (place[some] % EXPECTED_EVERY == 0).nonzero()[:, 0]
            u.append(_expected_vectors(p[expected.to(p.device)], model).to(f.device))
        self.sums["predicted.n"] += len(predicted)
        return torch.cat(u)

    def _centred(
        self, name: str, values: Float[Tensor, " n *size"]
    ) -> Float[Tensor, " more *size"]:
        """Values minus their mean, and one more row: the scaled distance to the mean so far.

        Products of two such tensors are what a batch adds to the sum about the common mean. The
        plain sum is updated; the number of positions must not be updated yet.
        """
        n, count = _count(self.sums, name), len(values)
        centred = values.new_zeros(count + 1, *values.shape[1:])
        if count == 0:
            return centred
        # In float64, so that a head with a constant activation has exactly zero variance.
        total = values.sum(0, dtype=torch.float64)
        torch.sub(values, (total / count).to(values.dtype), out=centred[:-1])
        total = total.cpu()
        if n:
            move = total / count - self.sums[name] / n
            centred[-1] = move.to(values) * (n * count / (n + count)) ** 0.5
        self.sums[name] += total
        return centred

    def _add_products(
        self,
        name: str,
        of_z: Float[Tensor, "n head d_head"],
        other: Float[Tensor, " n *size"],
    ) -> None:
        # Summed first, then added: adding each position to the large total would round each time.
        if other.dim() == 3:
            product = of_z.permute(1, 2, 0) @ other.transpose(0, 1)
        else:
            # One product for all heads of the layer: much faster than one per head.
            product = of_z.flatten(1).T @ other.to(of_z.device)
            product = product.unflatten(0, of_z.shape[1:])
        self.sums[name] += product.cpu()

    def merge(self, other: Statistics) -> Statistics:
        """The statistics of both texts together."""
        mine = {name: tuple(total.shape) for name, total in self.sums.items()}
        theirs = {name: tuple(total.shape) for name, total in other.sums.items()}
        if mine != theirs:
            raise LensError(
                "cannot merge statistics of models with different layers, heads or sizes",
                hint="merge only lenses that were fitted for the same model",
            )
        sums = {name: total + other.sums[name] for name, total in self.sums.items()}
        merged = Statistics(sums=sums, layers=self.layers)
        for part in (self, other):
            for name, gap in part._gaps(sums):
                sums[name] += gap
        return merged

    def add_up(self, processes: Processes) -> None:
        """Sum over all processes, in place."""
        if processes.world == 1:
            return
        sums = {name: total.clone() for name, total in self.sums.items() if "scatter" not in name}
        processes.add_up(sums.values())
        for name, gap in self._gaps(sums):
            self.sums[name] += gap
            processes.add_up([self.sums[name]])
        self.sums.update(sums)

    def _gaps(self, whole: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """By product: the correction from the means of this part to those of the whole text.

        All products are yielded, even if the correction is zero.
        """
        for layer in self.layers:
            for product in _Product.of(layer):
                n, all_n = float(self.sums[product.n]), float(whole[product.n])
                z, other = (
                    self.sums[name] / max(n, 1.0) - whole[name] / max(all_n, 1.0)
                    for name in (product.of_z, product.other)
                )
                yield product.name, (n * _outer(z, other)).float()


def _count(sums: Mapping[str, Tensor], name: str) -> float:
    return float(sums["expected.n" if "expected." in name else "n"])


def _outer(
    of_z: Float[Tensor, "head d_head"], other: Float[Tensor, "*head d_other"]
) -> Float[Tensor, "head d_head d_other"]:
    return of_z[..., None] * (other[:, None] if other.dim() == 2 else other)


def _expected_vectors(
    p: Float[Tensor, "n d_vocab"], model: LanguageModel
) -> Float[Tensor, "n d_model"]:
    """``W_U^T p``, without a copy of all of ``W_U`` in float32."""
    weight = model.unembedding.weight
    u = p.new_zeros(len(p), weight.shape[1])
    for part, rows in zip(p.split(TOKENS_AT_ONCE, 1), weight.split(TOKENS_AT_ONCE), strict=True):
        u.addmm_(part, rows.float())
    return u


def _rows(
    activation: Float[Tensor, "batch pos *size"], kept: slice | Int[Tensor, " n"]
) -> Float[Tensor, " n *size"]:
    """Some positions of a batch, one after the other, in float32."""
    return activation.flatten(0, 1)[
        kept if isinstance(kept, slice) else kept.to(activation.device)
    ].float()


# The covariances of one layer's heads, from the sums of a pass, and the ridge they need.


class Covariances(NamedTuple):
    """In the notation of `Statistics`, in float64."""

    mean: Float[Tensor, "head d_head"]
    """Of z."""
    zz: Float[Tensor, "head d_head d_head"]
    zf: Float[Tensor, "head d_head d_model"]
    zu: Float[Tensor, "head d_head d_model"]

    @classmethod
    def of(cls, statistics: Statistics, layer: int) -> Covariances:
        """Those of one layer."""
        return cls(
            mean=statistics.mean(f"{layer}.z"),
            zz=statistics.covariance(layer, "zz"),
            zf=statistics.covariance(layer, "zf"),
            zu=statistics.covariance(layer, "zu"),
        )


def ridged(
    zz: Float[Tensor, "head d_head d_head"], ridge: float
) -> Float[Tensor, "head d_head d_head"]:
    """Covariances with a ridge, relative to the mean variance of each head.

    >>> ridged(torch.tensor([[[3.0, 1.0], [1.0, 5.0]]]), 0.5)
    tensor([[[5., 1.],
             [1., 7.]]])
    """
    variance = zz.diagonal(dim1=1, dim2=2).mean(-1)[:, None, None]
    # A head whose activation is constant gets a zero lens instead of a division by zero; the
    # inverse of the floor is finite in float32.
    floor = torch.finfo(torch.float32).tiny ** 0.5
    identity = torch.eye(zz.shape[-1], dtype=zz.dtype, device=zz.device)
    return zz + (ridge * variance + floor) * identity


def damped_inverse(
    information: Float[Tensor, "d_model d_model"], damping: float
) -> Float[Tensor, "d_model d_model"]:
    """The inverse of a Fisher information, damped relative to its largest eigenvalue."""
    largest = torch.linalg.eigvalsh(information)[-1]
    identity = torch.eye(len(information), dtype=information.dtype, device=information.device)
    return torch.linalg.inv(information + damping * largest * identity)
