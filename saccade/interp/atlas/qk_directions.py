"""The directions in which a head's queries and keys find each other: their names, and a control.

`saccade.interp.atlas.query_keys` has the directions. What is said about them is measured on windows
that they were not made of: which tokens' queries and keys lie far out on them, how much of them is
position, and whether they do what they claim, which is to separate the keys that the head attends
to from the others. For that the score of a pair is restricted to them: to what the part of the
query in its directions has in common with the part of the key in its own. Beside it stand random
directions (one draw for both sides), those of the covariance of attended pairs without the
contrast, the whole score, and distance alone, which needs no content at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from saccade.errors import UsageError
from saccade.interp.atlas.looks import skewed
from saccade.interp.atlas.query_keys import (
    ATTENDED,
    Contrast,
    Pairs,
    Turn,
    contrasts,
    held_out,
    turns_of,
)
from saccade.interp.heads.attention_weights import KernelInput, recorded_kernels
from saccade.interp.heads.capture import run_base
from saccade.interp.heads.onednn import fast_products
from saccade.interp.lenses.batches import row_hashes
from saccade.interp.lenses.gather import Progress
from saccade.interp.lenses.top_tokens import plain

if TYPE_CHECKING:
    from saccade.interp.atlas.atlas import Atlas
    from saccade.interp.heads.model import LanguageModel

DIRECTIONS = 4
WINDOWS = 16  # at most
QUERY_EVERY = 8  # one query in so many is asked which keys it attends to
DRAWS = 3  # of random directions
TOKENS, LEAST_OCCURRENCES = 6, 3
CONSTANT = 0.9  # a direction of queries with this share in its mean is alike for any query


@torch.no_grad()
def direction_table(
    model: LanguageModel, atlas: Atlas, *, progress: Progress | None = None
) -> dict[str, dict[str, Any]]:
    """By head: its directions, and what they separate; the model runs some windows again.

    Raises:
        ModelError: the weights of heads are not found.
        UsageError: the atlas has no sums of queries and keys, or too few windows are left out.
    """
    layers = list(dict.fromkeys(layer for layer, _ in atlas.sites))
    turns = turns_of(model, layers, atlas.windows[:1])  # without them there are no sums either
    if ATTENDED not in atlas.sums:
        raise UsageError(
            "the atlas has no sums of queries and keys", hint="build it again with this version"
        )
    windows = atlas.windows[held_out(atlas.windows)]
    windows = windows[row_hashes(windows).argsort()][:WINDOWS]
    if len(windows) < 2:
        raise UsageError(
            f"{len(windows)} of {len(atlas.windows)} windows are left out of the sums, and 2 are "
            "needed to name directions",
            hint="give more text",
        )
    found = _Measured(model, atlas, windows, turns)
    for number in range(len(windows)):
        found.add(number)
        if progress is not None:
            progress("naming directions", number + 1, len(windows))
    return found.table()


def separation(
    scores: Float[Tensor, "*batch key"],
    attended: Float[Tensor, "*#batch key"],
    unattended: Float[Tensor, "*#batch key"],
) -> Float[Tensor, "*batch"]:
    """How often an attended key scores higher than an unattended one (AUROC, keys by weight).

    >>> weights = torch.tensor([0.0, 0.25, 0.75])
    >>> float(separation(torch.tensor([1.0, 2.0, 3.0]), weights, 1 - weights))
    0.875
    """
    order = scores.sort(-1)
    yes, no = (each.expand_as(scores).gather(-1, order.indices) for each in (attended, unattended))
    below = pad(no.cumsum(-1), (1, 0))  # [..., key + 1]
    strictly, at_most = (
        below.gather(-1, torch.searchsorted(order.values, order.values, right=right))
        for right in (False, True)
    )
    pairs = (yes.sum(-1) * no.sum(-1)).clamp_min(1e-12)
    return (yes * (strictly + at_most)).sum(-1) / (2 * pairs)  # of the same score: half


class Groups:
    """Projections of pairs, summed by groups (tokens, distances) in either half of the windows."""

    def __init__(self, n_groups: int, n_heads: int, n_directions: int) -> None:
        self.weight = torch.zeros(2, n_groups, n_heads)
        self.first = torch.zeros(2, n_groups, n_heads, n_directions)
        self.second = torch.zeros(2, n_heads, n_directions, dtype=torch.double)

    def add(
        self,
        half: int,
        heads: Sequence[int],
        group: Int[Tensor, " item"],
        weight: Float[Tensor, "head item"],
        first: Float[Tensor, "head item direction"],
        second: Float[Tensor, "head direction"],
    ) -> None:
        """Add items: their weight, and projections and their squares times the weight."""
        at = torch.tensor(heads)
        for into, each in ((self.weight[half], weight), (self.first[half], first)):
            by_group = each.new_zeros(len(into), len(heads), *each.shape[2:])
            by_group.index_add_(0, group.to(each.device), each.transpose(0, 1))
            into[:, at] += by_group.cpu()
        self.second[half, at] += second.double().cpu()

    @property
    def mean(self) -> Float[Tensor, "head direction"]:
        """The mean projection."""
        return self.first.sum((0, 1)) / self._whole

    @property
    def mean_square(self) -> Float[Tensor, "head direction"]:
        """Of the projection."""
        return self.second.sum(0).float() / self._whole

    @property
    def _whole(self) -> Float[Tensor, "head 1"]:
        return self.weight.sum((0, 1)).clamp_min(1e-12)[:, None]

    def means(self) -> Float[Tensor, "group head direction"]:
        """By group: how far its mean is from that of all, in standard deviations."""
        by_group = self.first.sum(0) / self.weight.sum(0).clamp_min(1e-12)[..., None]
        spread = (self.mean_square - self.mean.square()).clamp_min(1e-12).sqrt()
        return (by_group - self.mean) / spread

    def explained(self) -> Float[Tensor, "head direction"]:
        """The share of the variance that the means of groups predict in the other half of the text.

        So groups of a single item predict nothing.
        """
        found = torch.zeros_like(self.second[0])
        for half in (0, 1):
            weight, first = self.weight[half].double()[..., None], self.first[half].double()
            of_other, other = (
                self.weight[1 - half].double()[..., None],
                self.first[1 - half].double(),
            )
            overall = other.sum(0) / of_other.sum(0).clamp_min(1e-12)
            mean = torch.where(of_other > 0, other / of_other.clamp_min(1e-12), overall)
            wrong = self.second[half] + (mean * (mean * weight - 2 * first)).sum(0)
            total = self.second[half] - first.sum(0).square() / weight.sum(0).clamp_min(1e-12)
            found += (1 - wrong / total.clamp_min(1e-12)).clamp(0, 1) / 2
        return found.float()


class _Measured:
    """What is measured of the directions of all heads, window by window."""

    def __init__(
        self,
        model: LanguageModel,
        atlas: Atlas,
        windows: Int[Tensor, "window pos"],
        turns: Mapping[int, Turn],
    ) -> None:
        self.model, self.atlas, self.windows, self.turns = model, atlas, windows, turns
        self.numbers: dict[int, list[int]] = {}
        for number, (layer, _) in enumerate(atlas.sites):
            self.numbers.setdefault(layer, []).append(number)
        n_heads, n = len(atlas.sites), windows.shape[1]
        width = atlas.sums[ATTENDED].shape[-1]
        self.n = min(DIRECTIONS, width)
        self.found = contrasts(atlas.sums, self.n)
        self.control = contrasts(atlas.sums, self.n, is_plain=True)
        self.distinct = windows.unique()
        self.bins = _bin_of(torch.arange(n))
        n_tokens, n_bins = len(self.distinct), int(self.bins[-1]) + 1
        self.keys, self.queries = (Groups(n_tokens, n_heads, self.n) for _ in range(2))
        self.distances = Groups(n_bins, n_heads, self.n)
        # Mean weight at each distance over the whole text, by the queries that reach so far.
        reach = (n - 1 - torch.arange(n)).clamp_min(1)
        self.by_distance = atlas.sums["distance"].double().div(reach).float()
        self.separated = torch.zeros(len(_CONTROLS) - 1 + DRAWS, n_heads)
        self.mass = torch.zeros(n_heads)
        self.scaling = torch.ones(n_heads)

    def add(self, number: int) -> None:
        """Run one window; the halves of `Groups` take turns."""
        ids = self.windows[number : number + 1]
        token = torch.searchsorted(self.distinct, ids[0])
        is_text = self.model.is_text(ids)

        def look(layer: int, kernel: KernelInput, weights: Tensor) -> None:
            numbers = self.numbers[layer]
            heads = [self.atlas.sites[each][1] for each in numbers]
            pairs = Pairs.of(kernel, weights, heads, is_text, self.turns[layer])
            self.scaling[numbers] = kernel.scaling
            self._project(pairs, numbers, token, number % 2)
            self._separate(pairs, layer)

        layers = [self.model.layer(layer) for layer in self.numbers]
        with recorded_kernels(self.model.hf, layers, look), fast_products():
            run_base(self.model.hf, ids.to(self.model.device))

    def _directions(self, numbers: list[int], pairs: Pairs, of: Contrast) -> Contrast:
        """Of some heads, in the size of their queries."""
        d = pairs.query.shape[-1]
        sides = (each[numbers, :d].to(pairs.query) for each in (of.query, of.key))
        return Contrast(*sides, *(each[numbers] for each in of[2:]))

    def _project(
        self, pairs: Pairs, numbers: list[int], token: Int[Tensor, " pos"], half: int
    ) -> None:
        """Projections of the queries, and of the keys as each query sees them."""
        along = self._directions(numbers, pairs, self.found)
        mass = pairs.attended[0].sum(-1)  # [head, query_pos]
        projected = pairs.query[0] @ along.query  # [head, query_pos, direction]
        by_mass = projected * mass[..., None]
        self.queries.add(half, numbers, token, mass, by_mass, (by_mass * projected).sum(1))
        # Half of the weight on attended pairs, half on all: a pair counts as it does in the sums.
        weight = (pairs.attended[0] + pairs.unattended[0]) / 2  # [head, query_pos, key_pos]
        by_key, by_distance, second = [], [], []
        for direction in along.key.unbind(-1):  # a matrix of pairs at a time
            turned = torch.einsum("hd,pde->hpe", direction, pairs.turn.there)
            seen = turned @ pairs.key[0].mT  # [head, query_pos, key_pos]
            first = weight * seen
            by_key.append(first.sum(1))
            by_distance.append(_by_distance(first))
            second.append((first * seen).sum((1, 2)))
        squares = torch.stack(second, -1)
        self.keys.add(half, numbers, token, weight.sum(1), torch.stack(by_key, -1), squares)
        self.distances.add(
            half,
            numbers,
            self.bins,
            _by_distance(weight),
            torch.stack(by_distance, -1),
            squares,
        )

    def _separate(self, pairs: Pairs, layer: int) -> None:
        """How well scores restricted to directions tell attended keys from the others."""
        numbers, d = self.numbers[layer], pairs.query.shape[-1]
        n = pairs.query.shape[2]
        at = torch.arange(min(QUERY_EVERY, n) - 1, n, QUERY_EVERY)
        generator = torch.Generator().manual_seed(self.atlas.provenance.config.seed + layer)
        drawn = torch.randn(DRAWS, len(numbers), d, self.n, generator=generator)
        random = torch.linalg.qr(drawn).Q
        filters = [
            *(self._directions(numbers, pairs, of).filter for of in (self.found, self.control)),
            torch.eye(d).expand(len(numbers), d, d),
            *(random @ random.mT),
        ]
        stack = torch.stack([each.to(pairs.query) for each in filters])
        query = torch.einsum("hpd,mhde->mhpe", pairs.query[0][:, at], stack)
        query = torch.einsum("mhpe,pef->mhpf", query, pairs.turn.there[at])
        scores = query @ pairs.key[0].mT  # [filter, head, query_pos, key_pos]
        back = (at[:, None] - torch.arange(n)).clamp_min(0)
        near = self.by_distance[numbers][:, back].to(scores)
        scores = torch.cat([scores, near[None]])
        attended = pairs.attended[0][:, at]
        may = pairs.unattended[0][:, at] > 0
        scores = scores.masked_fill(~may, float("-inf"))
        mass = attended.sum(-1)
        others = (may.to(attended) - attended).clamp_min(0)
        found = separation(scores, attended, others) * mass
        self.separated[:, numbers] += found.sum(-1).cpu()
        self.mass[numbers] += mass.sum(-1).cpu()

    def table(self) -> dict[str, dict[str, Any]]:
        """By head: its directions, and how well they separate."""
        auroc = self.separated / self.mass.clamp_min(1e-12)
        columns = [auroc[:3], auroc[3:-1].mean(0, keepdim=True), auroc[-1:]]
        separated = torch.cat(columns).T.tolist()  # [head, control]
        # A pair of directions may be turned round together: queries are on their positive side.
        sign = torch.where(self.queries.mean < 0, -1.0, 1.0)
        counts = self.windows[:, 1:].unique(return_counts=True)
        occurrences = torch.zeros_like(self.distinct)
        occurrences[torch.searchsorted(self.distinct, counts[0])] = counts[1]
        tokens = [self._top(each, sign, occurrences) for each in (self.queries, self.keys)]
        numbers = {
            "share": self.found.share,
            "gap": self.found.gap * self.scaling[:, None],
            "position_share": self.distances.explained(),
            "token_share": self.keys.explained(),
            "query_token_share": self.queries.explained(),
            "constant_share": self.queries.mean.square()
            / self.queries.mean_square.clamp_min(1e-12),
        }
        best = (self.distances.means() * sign).masked_fill(
            self.distances.weight.sum(0)[..., None] <= 0, float("-inf")
        )
        nearest = best.argmax(0).tolist()  # [head, direction]
        by_head = zip(*(each.tolist() for each in numbers.values()), strict=True)
        found = {}
        for at, rows in enumerate(by_head):
            directions = []
            for each, row in enumerate(zip(*rows, strict=True)):
                shown = {
                    **dict(zip(numbers, row, strict=True)),
                    "query_tokens": tokens[0][at][each],
                    "key_tokens": tokens[1][at][each],
                    "distance": _named_bin(nearest[at][each]),
                }
                directions.append(plain({"name": _name(shown), **shown}))
            layer, head = self.atlas.sites[at]
            found[f"{layer}.{head}"] = plain(
                {
                    "directions": directions,
                    "gap": float(self.found.whole_gap[at] * self.scaling[at]),
                    **dict(zip(_CONTROLS, separated[at], strict=True)),
                    "windows": len(self.windows),
                }
            )
        return found

    def _top(
        self, groups: Groups, sign: Float[Tensor, "head direction"], occurrences: Tensor
    ) -> list[list[list[dict[str, Any]]]]:
        """By head and direction: the tokens that lie farthest out."""
        least = min(LEAST_OCCURRENCES, int(occurrences.max()))
        is_known = (groups.weight.sum(0) > 0) & (occurrences >= least)[:, None]  # [token, head]
        far = (groups.means() * sign).masked_fill(~is_known[..., None], float("-inf"))
        best = far.topk(min(TOKENS, len(far)), dim=0)
        ids = self.distinct[best.indices]
        names = self.atlas.show(self.distinct.tolist())
        texts = dict(zip(self.distinct.tolist(), names, strict=True))
        return [
            [
                [
                    {"text": texts[token], "value": plain(value)}
                    for token, value in zip(*each, strict=True)
                    if value > 0
                ]
                for each in zip(*of_head, strict=True)
            ]
            for of_head in zip(
                ids.permute(1, 2, 0).tolist(), best.values.permute(1, 2, 0).tolist(), strict=True
            )
        ]


_CONTROLS = ("auroc", "auroc_plain", "auroc_whole", "auroc_random", "auroc_distance")


def _by_distance(
    pairs: Float[Tensor, "head query_pos key_pos"],
) -> Float[Tensor, "head distance"]:
    return skewed(pairs).sum(1)[:, : pairs.shape[-1]]


def _bin_of(distance: Int[Tensor, " distance"]) -> Int[Tensor, " distance"]:
    """0, 1, 2 to 3, 4 to 7, and so on."""
    return distance.clamp_min(1).log2().floor().long() + (distance > 0)


def _named_bin(number: int) -> str:
    if number < 2:
        return ("itself", "1 back")[number]
    return f"{2 ** (number - 1)}-{2**number - 1} back"


def _name(direction: dict[str, Any]) -> str:
    """Which queries find which keys."""

    def tokens(kind: str) -> str:
        return " ".join(repr(each["text"]) for each in direction[kind][:2]) or "?"

    is_constant = direction["constant_share"] >= CONSTANT
    is_position = direction["position_share"] > direction["token_share"]
    queries = "any" if is_constant else tokens("query_tokens")
    return f"{queries} -> {direction['distance'] if is_position else tokens('key_tokens')}"
