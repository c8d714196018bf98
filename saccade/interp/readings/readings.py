"""Readings of many prompts: in batches as they come, as a table, and over all prompts."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from jaxtyping import Float
from scipy.stats import t as student
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from saccade.errors import MissingPackageError, ModelError, UsageError
from saccade.interp.effects.copies import run_copies
from saccade.interp.effects.effects import part_changes
from saccade.interp.effects.replacement import Replacement
from saccade.interp.effects.target import Target, effects_on_targets
from saccade.interp.heads.prompt_batches import prompt_batches
from saccade.interp.readings.prompt import NumberedSpec, Prompt, PromptSpec, encode_spec
from saccade.interp.readings.reader import ReadConfig, read_batch
from saccade.interp.readings.reading import HeadReading, Reading
from saccade.interp.readings.reading_table import printable
from saccade.store.atomic import atomic_file

if TYPE_CHECKING:
    from pandas import DataFrame

    from saccade.interp.heads.model import LanguageModel

WINDOW = 64  # prompts that are sorted by length together: so many readings at most are in memory
# Rows of a batch, copies of last tokens included: 2048 are 100 MB of activations in the default
# model, and more rows take no less time each.
BATCH_ROWS = 2048


# The readings of many prompts, one after the other.


class NumberedReading(NamedTuple):
    """The reading of a prompt, with the number of the prompt."""

    number: int
    reading: Reading


def encode_numbered(model: LanguageModel, each: NumberedSpec, defaults: PromptSpec) -> Prompt:
    """Encode a prompt; an error tells its number."""
    try:
        return encode_spec(model, each.spec.or_else(defaults))
    except (UsageError, ModelError) as error:
        raise type(error)(f"prompt {each.number}: {error}", hint=error.hint) from error


def read_each(
    model: LanguageModel,
    specs: Iterable[NumberedSpec],
    *,
    defaults: PromptSpec,
    config: ReadConfig,
) -> Iterator[NumberedReading]:
    """Read prompts in batches of similar length, and give the readings in the order of the prompts.

    At most `WINDOW` prompts are taken ahead, and a reading is given as soon as those before it
    have been.
    """
    n_copies = len(_changes_of(model, config)) + 1
    for window in _windows(specs):
        encoded = [encode_numbered(model, each, defaults) for each in window]
        done: dict[int, Reading] = {}
        following = 0
        for rows in _batch_rows(encoded, n_copies):
            found = read_batch(model, [encoded[row] for row in rows], config)
            done.update(zip(rows, found, strict=True))
            while following in done:
                yield NumberedReading(window[following].number, done.pop(following))
                following += 1


def _changes_of(model: LanguageModel, config: ReadConfig) -> Sequence[object]:
    if config.replacement is None:
        return ()
    return part_changes(model, config.replacement.at_last(), config.kinds)[0]


def _windows(specs: Iterable[NumberedSpec]) -> Iterator[list[NumberedSpec]]:
    given = iter(specs)
    while window := list(islice(given, WINDOW)):
        yield window


def _batch_rows(encoded: Sequence[Prompt], n_copies: int) -> Iterator[list[int]]:
    """The places of the prompts of each batch."""
    ids = [prompt.ids[0] for prompt in encoded]
    for batch in prompt_batches(ids, max_tokens=BATCH_ROWS, n_more=n_copies):
        yield batch.rows.tolist()


def read_many(
    model: LanguageModel, prompts: Iterable[Any], *, defaults: PromptSpec, config: ReadConfig
) -> Readings:
    """The readings of all prompts; see `saccade.interp.readings.reader.read`."""
    specs = _numbered(prompts)
    found = tuple(
        each.reading for each in read_each(model, specs, defaults=defaults, config=config)
    )
    asked = tuple(each.spec.or_else(defaults) for each in specs)
    return Readings(found, model=model, asked=asked, replacement=config.replacement)


def _numbered(prompts: Iterable[Any]) -> list[NumberedSpec]:
    specs = []
    for number, value in enumerate(prompts, 1):
        try:
            specs.append(NumberedSpec(number, PromptSpec.of(value)))
        except UsageError as error:
            raise UsageError(f"prompt {number}: {error}", hint=error.hint) from error
    if not specs:
        raise UsageError("there are no prompts", hint="give at least one")
    return specs


@final
class Readings(Sequence[Reading]):
    """The readings of several prompts of one model, in their order."""

    def __init__(
        self,
        readings: Sequence[Reading],
        *,
        model: LanguageModel,
        asked: Sequence[PromptSpec],
        replacement: Replacement | None,
    ) -> None:
        self._readings, self._asked = tuple(readings), tuple(asked)
        self._model, self._replacement = model, replacement

    def __len__(self) -> int:
        return len(self._readings)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return self._readings[index]
        return Readings(
            self._readings[index],
            model=self._model,
            asked=self._asked[index],
            replacement=self._replacement,
        )

    def __repr__(self) -> str:
        return f"<{len(self)} readings of {self._model.name}>"

    def rows(self) -> Iterator[dict[str, Any]]:
        """One flat dict a head; prompts are counted from 1."""
        for number, reading in enumerate(self, 1):
            yield from reading_rows(reading, number)

    def to_pandas(self) -> DataFrame:
        """A table with one row a head."""
        return _frame(list(self.rows()))

    def to_csv(self, path: str | Path) -> None:
        """Write the same table to a file."""
        with atomic_file(path) as temporary:
            header = csv_lines([], header=True)
            text = (csv_lines(reading_rows(each, n)) for n, each in enumerate(self, 1))
            temporary.write_text(header + "".join(text), encoding="utf-8")

    def promoters(self, token: str | None = None) -> Promoters:
        """Which heads promote a token over these prompts: effects on its logit, averaged.

        Args:
            token: as a user writes it, such as " Paris": the prompts are run again, one pass a
                batch. None for the token that each prompt was read for.

        Raises:
            UsageError: the readings are without effects.
        """
        if token is None and self._replacement is not None:
            rows = [[h.effect.on_token for h in each.heads if h.effect] for each in self]
            return Promoters.of(self._model, torch.tensor(rows), token=None)
        specs = [
            NumberedSpec(n, replace(spec, token=token, against=None))
            for n, spec in enumerate(self._asked, 1)
        ]
        defaults = PromptSpec(token=token)
        return promoters(self._model, specs, defaults=defaults, replacement=self._replacement)


# Which heads promote a token over many prompts.

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Promoter:
    """One head's effects on a token over prompts, in logits above the mean of all tokens."""

    layer: int
    head: int
    mean: float
    low: float | None
    """The 95% interval of the mean over prompts (Student's t); None for one prompt."""
    high: float | None
    share_positive: float
    """The share of the prompts in which the head promotes the token."""

    @property
    def name(self) -> str:
        """``29.0`` is head 0 of layer 29."""
        return f"{self.layer}.{self.head}"


@dataclass(frozen=True, kw_only=True)
class Promoters:
    """All heads of a model by their mean effect on a token over prompts, largest first."""

    model: str
    token: str | None
    """None where each prompt has its own."""
    n_prompts: int
    heads: tuple[Promoter, ...]

    @classmethod
    def of(
        cls, model: LanguageModel, effects: Float[Tensor, "prompt head"], *, token: str | None
    ) -> Promoters:
        """From the effect of every head in every prompt, heads in order of depth."""
        n = len(effects)
        values = effects.double()
        mean, share = values.mean(0).tolist(), (values > 0).double().mean(0).tolist()
        half: list[float | None] = [None] * values.shape[1]
        if n > 1:
            quantile = float(student.ppf((1 + CONFIDENCE) / 2, n - 1))
            half = (quantile * values.std(0) / math.sqrt(n)).tolist()
        sites = [(at.index, head) for at in model.layers for head in range(at.n_heads)]
        heads = [
            Promoter(
                layer=layer,
                head=head,
                mean=centre,
                low=None if reach is None else centre - reach,
                high=None if reach is None else centre + reach,
                share_positive=positive,
            )
            for (layer, head), centre, reach, positive in zip(sites, mean, half, share, strict=True)
        ]
        ranked = tuple(sorted(heads, key=lambda each: -each.mean))
        return cls(model=model.name, token=token, n_prompts=n, heads=ranked)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts."""
        return asdict(self)

    def to_pandas(self) -> DataFrame:
        """A table with one row a head."""
        return _frame([asdict(each) for each in self.heads])


@torch.no_grad()
def promoters(
    model: LanguageModel,
    specs: Iterable[NumberedSpec],
    *,
    defaults: PromptSpec,
    replacement: Replacement | None,
) -> Promoters:
    """The effect of every head on a token over prompts, without the rest of their readings.

    Args:
        defaults: the token of prompts that name none; without, the likeliest token after each.
    """
    if replacement is None:
        raise UsageError(
            "these are readings without effects: nothing is known about what heads promote",
            hint="measure effects, as by default",
        )
    parts, changes = part_changes(model, replacement.at_last())
    found: list[Tensor] = []
    tokens = {defaults.token}
    for window in _windows(specs):
        encoded = [encode_numbered(model, each, defaults) for each in window]
        rows = torch.zeros(len(window), len(parts))
        for some in _batch_rows(encoded, len(parts) + 1):
            here = [encoded[row] for row in some]
            ids = pad_sequence([prompt.ids[0] for prompt in here], batch_first=True)
            run = run_copies(model, ids, changes, lengths=[p.ids.shape[1] for p in here])
            likeliest = model.unembedding.logits(run.captured.final[:, 0]).argmax(-1).tolist()
            targets = [p.target or Target(best) for p, best in zip(here, likeliest, strict=True)]
            rows[some] = effects_on_targets(model, run, targets).float().cpu()
        found.append(rows)
        tokens.update(each.spec.token for each in window if each.spec.token is not None)
    if not found:
        raise UsageError("there are no prompts", hint="give at least one")
    return Promoters.of(model, torch.cat(found), token=defaults.token if len(tokens) == 1 else None)


# Readings as rows of a table.

COLUMNS = (
    *("prompt", "layer", "head", "kind", "kl", "token", "on_token", "direct"),
    *("promotes", "suppresses", "attends"),
    *("lens_kl", "lens_quality", "lens_fidelity", "lens_agreement", "lens_adds"),
)


def reading_rows(reading: Reading, number: int) -> list[dict[str, Any]]:
    """One flat dict for each head and other part of a reading; tokens are joined by "|"."""
    return [_row(reading, each, number) for each in (*reading.heads, *reading.others)]


def _row(reading: Reading, each: HeadReading, number: int) -> dict[str, Any]:
    effect, lens = each.effect, each.lens
    values = (
        number,
        each.layer,
        each.head,
        each.kind,
        None if effect is None else effect.kl,
        None if reading.target is None else reading.target.text,
        None if effect is None else effect.on_token,
        None if effect is None else effect.direct,
        "" if effect is None else _joined(effect.promotes),
        "" if effect is None else _joined(effect.suppresses),
        _joined(each.attends),
        None if lens is None else lens.kl_from_baseline,
        None if lens is None else lens.explained,
        None if lens is None else lens.fidelity,
        None if effect is None else effect.lens_agreement,
        "" if lens is None else _joined(lens.adds),
    )
    return dict(zip(COLUMNS, values, strict=True))


def _joined(tokens: Iterable[Any]) -> str:
    return "|".join(token.text for token in tokens)


def csv_lines(rows: Iterable[dict[str, Any]], *, header: bool = False) -> str:
    """Rows as lines of CSV, numbers to six digits and line ends in tokens escaped."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([_cell(value) for value in row.values()])
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))


def _frame(rows: list[dict[str, Any]]) -> DataFrame:
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise MissingPackageError(
            "a table for pandas needs the package 'pandas'", hint="pip install pandas"
        ) from error
    return DataFrame(rows)
