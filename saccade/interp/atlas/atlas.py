"""An atlas: what every head of a model does, knows and looks at over a text; saved and loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import SaccadeError, StoreError, UsageError
from saccade.interp.atlas.atlas_config import AtlasConfig
from saccade.interp.atlas.looks import Look, Sums, add_whole, looks_of
from saccade.interp.atlas.records import Records, joined
from saccade.store.atomic import cache_dir
from saccade.store.folder import read_folder, write_folder
from saccade.store.schema import conform

if TYPE_CHECKING:
    from saccade.interp.atlas.finder import Found
    from saccade.interp.heads.model import LanguageModel

RECORDS, SUMS, TEXT, EXTRA = (
    f"{name}.safetensors" for name in ("records", "sums", "text", "extra")
)
MATTERS = 0.01
"""A head matters at a position if the prediction moves by so many nats without it."""


def default_atlas_path(fingerprint: str) -> Path:
    """The default path of a model's atlas: in the cache, by the fingerprint of its weights."""
    return cache_dir() / "atlases" / fingerprint


@dataclass(frozen=True, kw_only=True)
class AtlasProvenance:
    """What an atlas was made of; stored in its manifest."""

    model: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    sites: list[tuple[int, int]]
    """(layer, head) of every head of the atlas, in order of depth."""
    sources: list[str]
    fingerprints: list[str]
    """Of the tokens of each source."""
    config: AtlasConfig
    replaced_by: str
    replacement: str
    """Fingerprint of the values that replace a head."""
    lens: str | None = None
    """The sha256 of the lenses that were read; None without."""
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class HeadFigures:
    """The figures of one head of an atlas."""

    layer: int
    head: int
    kl: float
    """Mean KL(with || without) over the positions, in nats."""
    kl_median: float
    kl_95: float
    """95 % of the positions have a smaller effect."""
    matters: float
    """The share of positions where the prediction moves by more than `MATTERS` nats."""
    on_next: float
    """How far the log-probability of the text's next token falls without the head, on average."""
    look: Look
    lens_kl: float | None = None
    """How far its lens's prediction is from the baseline lens, on average, in nats."""
    agreement: float | None = None
    """The mean correlation of the lens's prediction with the exact effect."""
    quality: float | None = None
    """The share of the baseline lens's KL that its lens removes on held-out text."""
    roles: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``layer.head``."""
        return f"{self.layer}.{self.head}"

    def to_dict(self) -> dict[str, Any]:
        """One flat row: for JSON, CSV and plots."""
        row = asdict(self)
        look = row.pop("look")
        return {"name": self.name, **row, **look}


@dataclass(frozen=True)
class Atlas:
    """What every head of a model does, knows and looks at over a text."""

    provenance: AtlasProvenance
    records: Records
    sums: Sums
    """Of where heads look (`saccade.interp.atlas.looks`)."""
    windows: Int[Tensor, "window pos"]
    source: Int[Tensor, " window"]
    peaks: Float[Tensor, "window head"]
    """The largest attention weight of each head in each window, first position left out."""
    tokens: Mapping[int, str]
    """How the tokens that occur in the text or in the records are shown."""
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors of the parts that are measured after the scan, by name."""
    tables: Mapping[str, Any] = field(default_factory=dict)
    """Tables of these parts: roles, composition."""

    @property
    def sites(self) -> list[tuple[int, int]]:
        """(layer, head) of every head."""
        return self.provenance.sites

    @cached_property
    def distinct(self) -> list[int]:
        """The distinct tokens of the text, in the order of the sums."""
        return self.windows.unique().tolist()

    @cached_property
    def heads(self) -> tuple[HeadFigures, ...]:
        """The figures of all heads, in order of depth."""
        kl = self.records.kl
        ordered = kl.sort(0).values
        columns = [
            kl.mean(0),
            ordered[len(kl) // 2],
            ordered[min(int(0.95 * len(kl)), len(kl) - 1)],
            (kl > MATTERS).float().mean(0),
            self.records.on_next.float().mean(0),
        ]
        has_lens = len(self.records.lens_at) > 0
        lens = [self.records.lens_kl, self.records.agreement] if has_lens else []
        known = [each.float().mean(0).tolist() for each in lens] or [[None] * len(self.sites)] * 2
        looks = looks_of(self.sums)
        roles, quality = self.tables.get("roles", {}), self.tables.get("quality", {})
        return tuple(
            HeadFigures(
                layer=layer,
                head=head,
                kl=row[0],
                kl_median=row[1],
                kl_95=row[2],
                matters=row[3],
                on_next=row[4],
                look=look,
                lens_kl=lens_kl,
                agreement=agreement,
                quality=quality.get(f"{layer}.{head}"),
                roles=roles.get(f"{layer}.{head}", {}),
            )
            for (layer, head), look, lens_kl, agreement, row in zip(
                self.sites,
                looks,
                *known,
                zip(*(column.tolist() for column in columns), strict=True),
                strict=True,
            )
        )

    def index(self, layer: int, head: int) -> int:
        """The place of a head among `sites`."""
        try:
            return self.sites.index((layer, head))
        except ValueError:
            first, last = self.sites[0], self.sites[-1]
            raise UsageError(
                f"this atlas has no head {layer}.{head}: its {len(self.sites)} heads are "
                f"{first[0]}.{first[1]} to {last[0]}.{last[1]}",
                hint="give one of them, or build an atlas of all heads",
            ) from None

    def show(self, ids: Sequence[int]) -> list[str]:
        """How tokens are shown."""
        return [self.tokens.get(int(each), f"<{int(each)}>") for each in ids]

    def metric_row(self, at: int) -> dict[str, Any]:
        """The metrics of a head, its scores for roles among them: ``role.induction``.

        Where a head looks is a metric of the same name: ``induction`` is its attention over the
        text, ``role.induction`` its score in the published test.
        """
        row = self.heads[at].to_dict()
        roles = {f"role.{name}": score for name, score in row.pop("roles").items()}
        return {name: each for name, each in {**row, **roles}.items() if name != "name"}

    @cached_property
    def metrics(self) -> list[str]:
        """The names of the metrics that some head has."""
        rows = [self.metric_row(at) for at in range(len(self.sites))]
        return list(dict.fromkeys(k for row in rows for k, v in row.items() if v is not None))

    def find(
        self,
        *,
        token: str | None = None,
        suppressed: str | None = None,
        role: str | None = None,
        where: Sequence[str] = (),
        like: tuple[int, int] | None = None,
        matters_in: str | None = None,
        not_in: str | None = None,
    ) -> list[Found]:
        """The heads for which all conditions hold, ranked by the first of them.

        Args:
            token: they promote it at some position; a word stands for itself with and without the
                space before it, " Paris" for that token alone.
            suppressed: they suppress this token.
            role: ranked by their score for it.
            where: ranges of metrics, such as ``"kl>0.01"`` or ``"role.induction>=0.2"``.
            like: ranked by how similar their effects are to this head's at the same positions.
            matters_in: their effects are larger in this source of the text than in the others.
            not_in: the source to compare ``matters_in`` with, instead of all others.

        Raises:
            UsageError: no head promotes the token (the nearest ones are named), or there is no such
                role, metric, head or source.

        Example:
            >>> atlas = load_atlas("atlas")  # doctest: +SKIP
            >>> atlas.find(token=" Paris", where=["kl>0.01"])[0].name  # doctest: +SKIP
            >>> atlas.find(like=(12, 3))[:5]  # doctest: +SKIP
        """
        from saccade.interp.atlas.finder import Query, find_heads

        query = Query(
            token=token,
            suppressed=suppressed,
            role=role,
            where=where,
            like=like,
            matters_in=matters_in,
            not_in=not_in,
        )
        return find_heads(self, query)

    def check_model(self, model: LanguageModel) -> None:
        """Refuse a model that this is not the atlas of."""
        if model.fingerprint != self.provenance.model_fingerprint:
            raise UsageError(
                f"this is the atlas of {self.provenance.model} "
                f"({self.provenance.model_fingerprint}), not of {model.name} ({model.fingerprint})",
                hint="build an atlas of this model with `saccade atlas build`",
            )

    def save(self, path: str | Path) -> None:
        """Write it as a folder: safetensors and a JSON manifest."""
        ids = list(self.tokens)
        text = json.dumps([self.tokens[each] for each in ids], ensure_ascii=False).encode()
        files: dict[str, Mapping[str, Tensor]] = {
            RECORDS: self.records.tensors(),
            SUMS: self.sums,
            TEXT: {
                "windows": self.windows.to(torch.int32),
                "source": self.source.to(torch.int32),
                "peaks": self.peaks,
                "token_ids": torch.tensor(ids, dtype=torch.int32),
                "token_texts": torch.frombuffer(bytearray(text), dtype=torch.uint8),
            },
        }
        if self.extra:
            files[EXTRA] = self.extra
        manifest = {"provenance": asdict(self.provenance), "tables": self.tables}
        write_folder(path, {"kind": "atlas", **manifest}, files)


def load_atlas(path: str | Path) -> Atlas:
    """Read an atlas that `Atlas.save` wrote; every file is compared with its checksum."""
    folder = read_folder(path, needs=[RECORDS, SUMS, TEXT])
    manifest, text = folder.manifest, folder.tensors[TEXT]
    if manifest.get("kind") != "atlas":
        raise StoreError(
            f"{path} holds no atlas", hint="build one with `saccade atlas build --out FOLDER`"
        )
    provenance = conform(AtlasProvenance, manifest.get("provenance"), where=path)
    try:
        texts = json.loads(text["token_texts"].numpy().tobytes())
        atlas = Atlas(
            provenance,
            Records(**folder.tensors[RECORDS]),
            folder.tensors[SUMS],
            text["windows"].long(),
            text["source"].long(),
            text["peaks"],
            dict(zip(text["token_ids"].tolist(), texts, strict=True)),
            folder.tensors.get(EXTRA, {}),
            manifest.get("tables", {}),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{path} is damaged: its tensors are not those of an atlas ({error})",
            hint="build the atlas again",
        ) from error
    n = len(provenance.sites)
    shapes = {"records": atlas.records.kl.shape[1], "peaks": atlas.peaks.shape[1]}
    if wrong := [f"{name} of {found} heads" for name, found in shapes.items() if found != n]:
        raise StoreError(
            f"{path} is damaged: expected {n} heads, found {', '.join(wrong)}",
            hint="build the atlas again",
        )
    return atlas


def merge_atlases(parts: Sequence[Atlas]) -> Atlas:
    """The atlas of all texts of several atlases of one model.

    Records are put together and sums added, both exactly. Roles and composition, which do not
    depend on the text, are those of the first part. What needs the model again is left out
    (`saccade.interp.atlas.atlas_parts`): sampled sequences, and directions of queries and keys.
    """
    if len(parts) < 2:
        raise UsageError(
            f"merging needs at least two atlases, got {len(parts)}", hint="name two folders"
        )
    first = parts[0].provenance
    for part in parts[1:]:
        _refuse_other(part.provenance, first)
    fingerprints = [each for part in parts for each in part.provenance.fingerprints]
    if len(set(fingerprints)) < len(fingerprints):
        raise SaccadeError(
            "cannot merge atlases of one text with itself", hint="name each part once"
        )
    every = sorted({token for part in parts for token in part.distinct})
    sums: Sums = {}
    measured = set.intersection(*(set(part.sums) for part in parts))
    for part in parts:
        for name, value in _renumbered(part, every).items():
            if name in measured:
                add_whole(sums, name, value)
    n_windows = n_sources = 0
    records, sources = [], []
    for part in parts:
        records.append(replace(part.records, window=part.records.window + n_windows))
        sources.append(part.source + n_sources)
        n_windows += len(part.windows)
        n_sources += len(part.provenance.sources)
    provenance = replace(
        first,
        sources=[each for part in parts for each in part.provenance.sources],
        fingerprints=fingerprints,
        config=replace(first.config, tokens=sum(part.windows.numel() for part in parts)),
    )
    return Atlas(
        provenance,
        joined(records),
        sums,
        torch.cat([part.windows for part in parts]),
        torch.cat(sources),
        torch.cat([part.peaks for part in parts]),
        {token: text for part in parts for token, text in part.tokens.items()},
        {},
        _of_model(parts[0].tables),
    )


def _of_model(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The tables that do not depend on the text."""
    left_out = tables.get("left_out", {})
    found = {name: table for name, table in tables.items() if name not in ("why", "left_out")}
    if kept := {part: reason for part, reason in left_out.items() if part != "why"}:
        found["left_out"] = kept
    return found


def _refuse_other(found: AtlasProvenance, first: AtlasProvenance) -> None:
    """Atlases add up if the same was measured of the same model."""
    for name in ("model_fingerprint", "sites", "replacement", "lens"):
        if getattr(found, name) != getattr(first, name):
            raise SaccadeError(
                f"cannot merge these atlases: their {name.replace('_', ' ')} differ",
                hint="build the parts with the same model, heads and lenses",
            )
    ours, theirs = (
        (each.config.window, each.config.every, each.config.seed) for each in (first, found)
    )
    if ours != theirs:
        raise SaccadeError(
            f"cannot merge these atlases: window, every and seed are {ours} and {theirs}",
            hint="build the parts with the same settings",
        )


_BY_TOKEN = frozenset({"key_token", "query_token", "key_count", "query_count"})


def _renumbered(part: Atlas, every: Sequence[int]) -> Sums:
    """The sums of a part, its tokens numbered among those of all parts."""
    place = {token: at for at, token in enumerate(every)}
    at = torch.tensor([place[token] for token in part.distinct])
    found: Sums = {}
    for name, value in part.sums.items():
        found[name] = value
        if name in _BY_TOKEN:
            found[name] = value.new_zeros(*value.shape[:-1], len(every))
            found[name][..., at] = value
    return found
