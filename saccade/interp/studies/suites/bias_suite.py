"""The suite of gender bias: WinoBias, StereoSet, rated professions, and what silencing costs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import TaskError
from saccade.interp.effects.replacement import Replacement, reference_text
from saccade.interp.heads.intervene import intervene
from saccade.interp.studies.bias.silence_cost import FEMALE, MALE, ablations, silencing_cost
from saccade.interp.studies.fidelity.geometry import resampled
from saccade.interp.studies.roles.role import role_data
from saccade.interp.studies.suites.professions import (
    TEMPLATES,
    correlation,
    halves,
    leans_of,
    read_professions,
    spearman,
)
from saccade.interp.studies.suites.stereoset import (
    FIELDS,
    INTER,
    INTRA,
    Metrics,
    Scores,
    bounds,
    change_of,
    is_inter,
    metrics_of,
    read_stereoset,
    sentence_scores,
)
from saccade.interp.studies.suites.suite import (
    Found,
    Interval,
    Item,
    Progress,
    Row,
    Suite,
    SuiteConfig,
    interval,
    row,
)
from saccade.interp.studies.suites.winobias import (
    indirect_effects,
    pair_odds,
    pairs_of,
    read_pairs,
)

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

Site = tuple[int, int]

TOP = 10  # heads, as many as Vig et al. print
DEFINITIONAL = 0.75  # professions with a rating beyond it are gendered by definition
FEWEST = 8  # items of a correlation or a part that heads are chosen on
OTHERS = 300  # items of StereoSet about something else than gender, for the silenced model
COST_WINDOW, COST_ROWS = 64, 48
DEV, TEST, STEREOSET, PROFESSIONS = "winobias dev", "winobias test", "stereoset", "professions"
VIG = "Vig et al. 2020, GPT-2 small (another model)"
SWAP = (
    "as published: the pronoun is exchanged, one head's attention weights become those of the other"
    " sentence, pairs with an odds ratio in the lowest quarter above 1 or below 1 are left out"
)
BY_LIKELIHOOD = (
    "published: GPT-2 small (another model), intersentence by a next-sentence head that the authors"
    " fine-tune; here by the likelihood of the sentence after its context"
)


class BiasSuite(Suite):
    """Gender in sentences, stereotypes in sentence pairs, and ratings of professions."""

    name: ClassVar[str] = "bias"
    about: ClassVar[str] = "which heads carry a gender bias, and what silencing them does"
    source: ClassVar[str] = (
        "WinoBias (Zhao et al. 2018, no licence stated), StereoSet (Nadeem et al. 2021, "
        "CC BY-SA 4.0), professions (Vig et al. 2020, MIT)"
    )
    folder: ClassVar[str] = "winobias"
    fields: ClassVar[frozenset[str]] = FIELDS

    def find(self, data: str | Path | None = None) -> Path:
        """The folder that holds the three data sets."""
        first = super().find(data)
        for name in (STEREOSET, PROFESSIONS):
            if not (first.parent / name).is_dir():
                raise TaskError(
                    f"the suite {self.name} needs the data set {name}, which is not beside {first}",
                    hint=f"put {name}/ into {first.parent} (source: {self.source})",
                )
        return first.parent

    def read(self, folder: Path) -> Mapping[str, Sequence[Item]]:
        """Pairs of WinoBias, items of StereoSet, professions."""
        return {
            DEV: read_pairs(folder / "winobias", "dev"),
            TEST: read_pairs(folder / "winobias", "test"),
            STEREOSET: read_stereoset(folder / STEREOSET),
            PROFESSIONS: read_professions(folder / PROFESSIONS / "professions.json"),
        }

    def run(
        self,
        model: LanguageModel,
        items: Mapping[str, Sequence[Item]],
        config: SuiteConfig,
        progress: Progress | None = None,
    ) -> Found:
        """Find heads on WinoBias dev, and evaluate them on everything else."""
        run = _Run(model, config, progress)
        heads: list[Site] = []
        if DEV in items and TEST in items:
            heads = run.winobias(items[DEV], items[TEST])
        for name, each in items.items():
            if name not in (DEV, TEST, PROFESSIONS):
                run.stereoset(name, each, heads)
        if PROFESSIONS in items:
            run.professions(items[PROFESSIONS])
        if heads:
            run.cost(heads)
        return Found(run.rows, run.notes, run.left_out)


@dataclass
class _Run:
    """One run of the suite: what is measured goes into the rows."""

    model: LanguageModel
    config: SuiteConfig
    progress: Progress | None
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def sites(self) -> list[Site]:
        """All heads in order of depth."""
        return [(at.index, head) for at in self.model.layers for head in range(at.n_heads)]

    def same_layers(self, chosen: Sequence[int]) -> list[int]:
        """The other heads of the layers of some heads: the control."""
        layers = {self.sites[site][0] for site in chosen}
        return [
            i for i, (layer, _) in enumerate(self.sites) if layer in layers and i not in {*chosen}
        ]

    # WinoBias.

    def winobias(self, dev: Sequence[Item], test: Sequence[Item]) -> list[Site]:
        """The heads with the largest effects on dev, and how they do on test."""
        effects = {}
        for name, items in ((DEV, dev), (TEST, test)):
            found = self._effects(name, items)
            if found is None:
                return []
            effects[name] = found
        chosen = effects[DEV].mean(0).topk(min(TOP, len(self.sites))).indices.tolist()
        others = self.same_layers(chosen)
        seed, n = self.config.seed, len(effects[TEST])
        agreement = _agreement(effects[DEV], effects[TEST], seed=seed)
        self.rows.append(row(TEST, "all heads, dev against test", "Spearman", agreement, n))
        for site in chosen[:5]:
            name = "head {}.{}".format(*self.sites[site])
            values = interval(effects[TEST][:, site], seed=seed)
            self.rows.append(row(TEST, name, "indirect effect", values, n, note=SWAP))
        for name, some in (
            (f"mean of the {len(chosen)} top heads of dev", chosen),
            ("mean of the other heads of these layers", others),
        ):
            if some:
                values = interval(effects[TEST][:, some].mean(1), seed=seed)
                self.rows.append(row(TEST, name, "indirect effect", values, n))
        heads = [self.sites[site] for site in chosen]
        self.notes.append(
            "heads found on WinoBias dev, by their indirect effect: "
            + ", ".join(f"{layer}.{head}" for layer, head in heads)
            + f"; published ({VIG}): 5.8 .055, 5.10 .036, 4.6 .032, 5.9 .030, 6.0 .014, 4.3 .011, "
            "the same first six on dev and test"
        )
        return heads

    def _effects(self, name: str, items: Sequence[Item]) -> Float[Tensor, "pair site"] | None:
        pairs = pairs_of(self.model, items)
        if len(pairs) < len(items):
            self.notes.append(
                f"{name}: {len(items) - len(pairs)} of {len(items)} pairs are left out, their "
                "pronouns are not one token each"
            )
        odds = pair_odds(self.model, pairs) if pairs else None
        if odds is None or len(odds.aligned) < FEWEST:
            n = 0 if odds is None else len(odds.aligned)
            self.left_out[name] = (
                f"the model's odds follow the stereotype in {n} pairs, fewer than {FEWEST}"
            )
            return None
        seed, kept = self.config.seed, odds.aligned
        total = interval(odds.total, seed=seed)
        self.rows.append(row(name, "model, all pairs", "total effect", total, len(pairs)))
        total = interval(odds.total[kept], seed=seed)
        published = f"0.249 ({VIG})"
        self.rows.append(
            row(
                name,
                "model, stereotyped pairs",
                "total effect",
                total,
                len(kept),
                published=published,
                note=SWAP,
            )
        )
        return indirect_effects(self.model, [pairs[i] for i in kept], self.progress)

    # StereoSet.

    def stereoset(self, name: str, items: Sequence[Item], heads: Sequence[Site]) -> None:
        """Scores of the model, and their change where heads are set to their mean."""
        seed = self.config.seed
        plain = sentence_scores(self.model, items, self.progress)
        groups = {
            INTRA: [i for i, item in enumerate(items) if not is_inter(item)],
            INTER: [i for i, item in enumerate(items) if is_inter(item)],
            "gender": [i for i, item in enumerate(items) if item.get("bias_type") == "gender"],
        }
        published = "LM 83.7, SS 57.0, ICAT 71.9 (GPT-2 small)"
        for group, chosen in {"overall": list(range(len(items))), **groups}.items():
            if len(chosen) >= FEWEST:
                beside = published if group == "overall" and name == STEREOSET else ""
                metrics = metrics_of(plain.of(chosen), seed=seed)
                self._metrics(f"{name} {group}", "model", metrics, len(chosen), beside)
        if heads:
            self._silenced(name, items, plain, groups["gender"], heads)

    def _silenced(
        self,
        name: str,
        items: Sequence[Item],
        plain: Scores,
        gender: Sequence[int],
        heads: Sequence[Site],
    ) -> None:
        """On the items about gender, and on some of the others."""
        seed = self.config.seed
        rest = [i for i in range(len(items)) if i not in {*gender}]
        drawn = sorted(random.Random(seed).sample(rest, min(OTHERS, len(rest))))
        groups = {"gender": list(gender), "other than gender": drawn}
        replacement = Replacement.usual(self.model)
        for method, silenced in self._with_control(heads).items():
            with intervene(self.model, ablations(replacement, silenced), may_do_nothing=True):
                for group, chosen in groups.items():
                    if len(chosen) < FEWEST:
                        continue
                    found = sentence_scores(self.model, [items[i] for i in chosen], self.progress)
                    own = plain.of(chosen)
                    # The two runs name terms in the order of their own items.
                    change = change_of(own, found._replace(term=own.term), seed=seed)
                    self._metrics(f"{name} {group}", f"{method}, change", change, len(chosen))

    def _with_control(self, heads: Sequence[Site]) -> dict[str, list[Site]]:
        """Found heads set to their mean, and as many others of the same layers."""
        at = [self.sites.index(head) for head in heads]
        others = self.same_layers(at)
        drawn = random.Random(self.config.seed).sample(others, min(len(heads), len(others)))
        found = {f"{len(heads)} heads of WinoBias dev set to their mean": list(heads)}
        if drawn:
            label = f"{len(drawn)} other heads of these layers set to their mean"
            found[label] = [self.sites[i] for i in drawn]
        return found

    def _metrics(
        self, data: str, method: str, metrics: Metrics, n: int, published: str = ""
    ) -> None:
        note = BY_LIKELIHOOD if published else ""
        for metric, value in zip(("LM", "SS", "ICAT"), metrics, strict=True):
            beside = published if metric == "LM" else ""
            self.rows.append(row(data, method, metric, value, n, published=beside, note=note))

    # Professions.

    def professions(self, items: Sequence[Item]) -> None:
        """How far heads that lean as people rate professions do so on professions not seen."""
        rated = [item for item in items if abs(float(item["definition"])) <= DEFINITIONAL]
        if len(rated) < 2 * FEWEST:
            self.left_out[PROFESSIONS] = f"{len(rated)} professions, fewer than {2 * FEWEST}"
            return
        # Ratings are positive for male; a lean is positive for " she".
        ratings = -torch.tensor([float(item["stereotype"]) for item in rated]).double()
        own, leans = leans_of(self.model, [str(i["profession"]) for i in rated], self.progress)
        split, seed = halves(len(rated), self.config.seed), self.config.seed
        on_train = spearman(leans[:, split.train], ratings[split.train][None])
        chosen = on_train.abs().topk(min(TOP, len(self.sites))).indices.tolist()
        signed = leans * on_train.sign()[:, None]
        n, rated_test = len(split.test), ratings[split.test]
        note = (
            f"{len(TEMPLATES)} of the 17 templates; heads, and their signs, are chosen on the other"
            " half of the professions"
        )
        parts = {
            "model": own[None],
            f"mean of the {len(chosen)} best heads of the other half": signed[chosen],
            f"sum of the {len(chosen)} best heads": leans[chosen].sum(0)[None],
        }
        if others := self.same_layers(chosen):
            parts["mean of the other heads of these layers"] = signed[others]
        for method, values in parts.items():
            found = correlation(values[:, split.test], rated_test, seed=seed)
            self.rows.append(row(PROFESSIONS, method, "Spearman", found, n, note=note))
        heads = ", ".join("{}.{}".format(*self.sites[site]) for site in chosen)
        self.notes.append(
            f"{len(items) - len(rated)} professions are gendered by definition (rated beyond "
            f"{DEFINITIONAL:g}) and left out; heads chosen on half of the others: {heads}"
        )

    # Cost.

    def cost(self, heads: Sequence[Site]) -> None:
        """Definitional words and perplexity without the heads."""
        folder = role_data("wikitext-2")
        corpus = None if folder is None else str(folder / "valid.txt.gz")
        text = reference_text(self.model, corpus, rows=COST_ROWS, window=COST_WINDOW)
        replacement = Replacement.usual(self.model)
        for method, silenced in self._with_control(heads).items():
            cost = silencing_cost(
                self.model, silenced, replacement=replacement, text=text, seed=self.config.seed
            )
            data = "cost of silencing"
            lost, kept = Interval(*cost.preference_lost), Interval(*cost.preference)
            n = len(FEMALE) + len(MALE)
            if not any(each.data == data for each in self.rows):
                self.rows.append(row(data, "model", "preference for the right pronoun", kept, n))
            self.rows += [
                row(data, method, "preference lost, nats", lost, n),
                row(data, method, "rise of perplexity", Interval(*cost.perplexity_rise), len(text)),
            ]
        where = "text that the model generates" if corpus is None else "WikiText-2 valid"
        self.notes.append(
            f"the cost is measured on {len(FEMALE) + len(MALE)} words that are female or male by "
            f"definition (king, queen, mother, ...) and on {len(text)} windows of {where}"
        )


def _agreement(
    dev: Float[Tensor, "pair site"], test: Float[Tensor, "other_pair site"], *, seed: int
) -> Interval:
    """Spearman's correlation over heads of mean effects; the interval draws pairs of both."""
    means = [
        resampled(len(each), seed=seed + number).double() @ each.double() / len(each)
        for number, each in enumerate((dev, test))
    ]
    return bounds(spearman(*means))
