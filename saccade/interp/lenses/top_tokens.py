"""Rankings of tokens: the largest values of a row, and what lenses add to the baseline lens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

# A token of a ranking, and the tokens of a whole one.


@dataclass(frozen=True, slots=True)
class TokenValue:
    """A token of the vocabulary and its value in a ranking."""

    id: int
    text: str
    value: float


@final
class TokenValues(Sequence[TokenValue]):
    """Tokens of a ranking; their texts are decoded on first use.

    A reading has about ten thousand tokens, of which few are shown: decoding all of them would take
    a tenth of the time of the reading.

    >>> tokens = TokenValues([1, 0], [0.5, 0.25], lambda ids: [" ab"[id_] for id_ in ids])
    >>> len(tokens), tokens[0]
    (2, TokenValue(id=1, text='a', value=0.5))
    """

    __slots__ = ("_ids", "_made", "_show", "_values")

    def __init__(
        self, ids: list[int], values: list[float], show: Callable[[list[int]], list[str]]
    ) -> None:
        self._ids, self._values, self._show = ids, values, show
        self._made: tuple[TokenValue, ...] | None = None

    def _tokens(self) -> tuple[TokenValue, ...]:
        if self._made is None:
            texts = self._show(self._ids)
            self._made = tuple(map(TokenValue, self._ids, texts, self._values))
        return self._made

    def to_list(self) -> list[dict[str, Any]]:
        """For JSON, numbers to six digits; creates no `TokenValue` objects."""
        columns = zip(self._ids, self._show(self._ids), self._values, strict=True)
        return [{"id": i, "text": text, "value": float(f"{v:.6g}")} for i, text, v in columns]

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: Any) -> Any:
        return self._tokens()[index]

    def __iter__(self) -> Iterator[TokenValue]:
        return iter(self._tokens())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash((*self._ids, *self._values))

    def __repr__(self) -> str:
        return repr(self._tokens())


def token_rows(
    order: TopTokens, show: Callable[[list[int]], list[str]], *, sign: int = 0
) -> list[TokenValues]:
    """The tokens of each row; with ``sign``, only those whose values have this sign."""
    rows = zip(order.ids.tolist(), order.values.tolist(), strict=True)
    if not sign:
        return [TokenValues(ids, values, show) for ids, values in rows]
    kept = ((ids, values, sum(sign * value > 0 for value in values)) for ids, values in rows)
    return [TokenValues(ids[:n], values[:n], show) for ids, values, n in kept]


def plain(value: Any) -> Any:
    """A number, a token, a dataclass or several of them, for JSON: numbers to six digits.

    A list is plain already and is returned as it is: a long text has half a million weights.

    >>> plain((TokenValue(3, " a", 1 / 3),))
    [{'id': 3, 'text': ' a', 'value': 0.333333}]
    """
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, TokenValues):
        return value.to_list()
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value


# What the predictions of lenses add to the baseline's.

BLOCK = 64  # tokens per block in the first pass; 32 and 128 are no faster for 49,152 tokens
CHUNK = 2**19  # values processed at once: two megabytes, which stay in the cache
LEAST_LOG = -87.0  # about the log of the smallest normal float32, in place of minus infinity


class TopTokens(NamedTuple):
    """The first tokens of a ranking, for each lens."""

    ids: Int[Tensor, "n token"]
    values: Float[Tensor, "n token"]


class LensPrediction(NamedTuple):
    """The predictions of n lenses."""

    kl_from_baseline: Float[Tensor, " n"]
    """KL from the baseline lens to the lens, in nats."""
    predicts: TopTokens
    """The likeliest tokens, with their probabilities."""
    adds: TopTokens
    """The tokens with the largest shares of that KL: ``p log(p / baseline)``, in nats."""
    suppresses: TopTokens
    """The tokens with the smallest ``baseline log(p / baseline)``, in nats."""


@torch.inference_mode()
def lens_prediction(
    logits: Float[Tensor, "n d_vocab"], baseline: Float[Tensor, " d_vocab"], *, top: int
) -> LensPrediction:
    """Compare lenses with the baseline lens, and find the tokens that make the difference.

    The plain ratio ``log(p / baseline)`` would favour tokens that are unlikely in both (a millionth
    against a billionth), so it is weighted: for added tokens by the lens's probability, so that the
    values of all tokens sum to ``kl_from_baseline``; for suppressed tokens by the baseline's, so
    that they sum to minus the opposite KL.

    Args:
        baseline: log probabilities of the baseline lens.
        top: tokens per ranking.

    >>> logits = torch.tensor([[0.7, 0.2, 0.1]]).log()
    >>> said = lens_prediction(logits, torch.tensor([0.2, 0.3, 0.5]).log(), top=1)
    >>> int(said.predicts.ids), int(said.adds.ids), int(said.suppresses.ids)
    (0, 0, 2)
    """
    usual_log = baseline.to(logits.device).float().clamp_min(LEAST_LOG)
    usual = usual_log.exp()
    top = min(top, logits.shape[1])
    rows = max(1, CHUNK // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    parts = []
    for chunk in logits.float().split(rows):
        likely = largest(chunk, top)
        p = chunk.softmax(-1)  # [rows, d_vocab]
        chances = p.gather(1, likely.ids)
        # Logit minus log probability, from the likeliest token: one pass over the vocabulary less
        # than log_softmax in addition to softmax.
        surplus = likely.values[:, :1] - chances[:, :1].log()
        ratio = (chunk - usual_log).sub_(surplus)  # log(p / baseline)
        shares = p.mul_(ratio)
        fallen = largest(ratio.mul(-usual), top)
        parts.append(
            LensPrediction(
                kl_from_baseline=shares.sum(-1),
                predicts=TopTokens(likely.ids, chances),
                adds=largest(shares, top),
                suppresses=TopTokens(fallen.ids, -fallen.values),
            )
        )
    return LensPrediction(
        torch.cat([part.kl_from_baseline for part in parts]),
        *(_joined([part[order] for part in parts]) for order in (1, 2, 3)),
    )


def largest(scores: Float[Tensor, "n d_vocab"], top: int) -> TopTokens:
    """The ``top`` largest scores of each row, in order.

    Like `torch.topk` in half the time: first the maximum of each block of tokens is found, then the
    tokens of the ``top`` best blocks, which contain the answer, are sorted.

    >>> largest(torch.tensor([[3.0, 9.0, 5.0]]), 2)
    TopTokens(ids=tensor([[1, 2]]), values=tensor([[9., 5.]]))
    """
    n, d_vocab = scores.shape
    if d_vocab <= BLOCK * top:
        values, ids = scores.topk(top, dim=-1)
        return TopTokens(ids, values)
    whole = pad(scores, (0, -d_vocab % BLOCK), value=-torch.inf) if d_vocab % BLOCK else scores
    blocks = whole.view(n, -1, BLOCK)
    best = blocks.amax(-1).topk(top, dim=-1).indices  # [n, top]
    tokens = blocks.gather(1, best[..., None].expand(-1, -1, BLOCK)).flatten(1)
    values, at = tokens.topk(top, dim=-1)
    return TopTokens(best.gather(1, at // BLOCK) * BLOCK + at % BLOCK, values)


def _joined(parts: list[TopTokens]) -> TopTokens:
    return TopTokens(torch.cat([part.ids for part in parts]), torch.cat([p.values for p in parts]))
