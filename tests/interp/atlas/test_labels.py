"""Labels on records that are made for a head with a known behaviour."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from saccade.interp.atlas.contexts import FEATURES, Contexts, token_class
from saccade.interp.atlas.labels import _auroc, label_auroc, make_labels
from saccade.interp.atlas.token_shares import token_shares


def chance_records(atlas, seed):
    """The positions of an atlas, with random effects, tokens and looks of every head."""
    chance = torch.Generator().manual_seed(seed)
    records = atlas.records
    n, heads = records.kl.shape
    known = torch.tensor(list(atlas.tokens))

    def drawn(like):
        return known[torch.randint(len(known), like.shape, generator=chance)].to(like.dtype)

    position = records.position[:, None, None].expand_as(records.looked)
    looked = (torch.rand(records.looked.shape, generator=chance) * (position + 1)).to(torch.int32)
    return replace(
        records,
        kl=torch.rand(n, heads, generator=chance),
        promoted=drawn(records.promoted),
        promoted_by=torch.rand(records.promoted_by.shape, generator=chance).half() + 0.1,
        suppressed=drawn(records.suppressed),
        suppressed_by=-torch.rand(records.suppressed_by.shape, generator=chance).half() - 0.1,
        looked=looked,
        looked_by=torch.full_like(records.looked_by, 0.25),
    )


@pytest.fixture(scope="module")
def own_token(atlas):
    """A token of the commonest class, which says more about a head than its class does."""
    classes = {token: token_class(text) for token, text in atlas.tokens.items()}
    (common, _), *_ = Counter(classes.values()).most_common(1)
    return min(token for token, name in classes.items() if name == common)


@pytest.fixture(scope="module")
def planted(atlas, own_token):
    """Head 0 promotes the token it looks at, head 1 one token of its own, head 2 looks back by 1.

    All other heads do what chance gives.
    """
    records = chance_records(atlas, 5)
    ids = atlas.windows[records.window.long()]
    for at in (0, 2):
        records.looked_by[:, at] = torch.tensor([0.9, 0.03, 0.03, 0.03]).half()
    records.promoted[:, 0, 0] = ids.gather(1, records.looked[:, 0, :1].long())[:, 0].int()
    records.promoted[:, 1, 0] = own_token
    records.looked[:, 2, 0] = (records.position - 1).clamp_min(0)
    return replace(atlas, records=records)


def test_a_planted_behaviour_is_a_fact_of_its_label(planted, own_token):
    labels = make_labels(planted)
    assert labels[0].facts[0].phrase == "promotes a token it looks at"
    assert labels[0].facts[0].rate > 0.95
    (own,) = (fact for fact in labels[1].facts if fact.phrase.startswith("promotes '"))
    assert own.tokens[0] == own_token and own.rate > 0.95
    assert labels[2].facts[0].phrase == "looks at the token before"


def test_labels_tell_held_out_contexts_of_planted_heads_from_others_and_not_those_of_chance(
    planted,
):
    rows = torch.arange(len(planted.records))
    half = planted.records.window % 2 == 0
    found = label_auroc(planted, range(40), train=rows[half], test=rows[~half])
    assert min(found[:3]) > 0.8
    assert sum(found[3:]) / 37 == pytest.approx(0.5, abs=0.06)


def test_rates_are_weighted_by_effect(planted):
    kl = torch.zeros_like(planted.records.kl)
    looks_before = Contexts(planted, torch.arange(len(kl)))
    (number,) = (i for i, f in enumerate(FEATURES) if f.phrase == "looks at the token before")
    holds = FEATURES[number].holds(looks_before)[:, 7]
    kl[holds, 7], kl[~holds, 7] = 30.0, 1.0
    labels = make_labels(replace(planted, records=replace(planted.records, kl=kl)))
    even = planted.records.window % 2 == 0
    expected = [
        30 * int(holds[half].sum()) / (30 * int(holds[half].sum()) + int((~holds[half]).sum()))
        for half in (even, ~even)
    ]
    (fact,) = (each for each in labels[7].facts if each.feature == number)
    assert fact.rate == pytest.approx(sum(expected) / 2, abs=1e-5)


def test_facts_are_what_a_loop_over_contexts_finds(planted):
    rows = torch.arange(0, len(planted.records), 5)
    contexts = Contexts(planted, rows)
    found = {feature.phrase: feature.holds(contexts).expand(contexts.shape) for feature in FEATURES}
    records = planted.records
    for n, row in enumerate(rows.tolist()):
        position = int(records.position[row])
        ids = planted.windows[int(records.window[row])].tolist()
        before, current = ids[: position + 1], ids[position]
        after = {i + 1 for i in range(position) if ids[i] == current}
        for at in range(0, 40, 3):
            promoted = int(records.promoted[row, at, 0])
            looked = list(
                zip(
                    records.looked[row, at].tolist(),
                    records.looked_by[row, at].tolist(),
                    strict=True,
                )
            )
            main, weight = max(
                (each for each in looked if each[0] > 0), key=lambda each: each[1], default=(0, 0)
            )
            expected = {
                "promotes a token it looks at": any(
                    ids[key] == promoted and w >= 0.1 for key, w in looked
                ),
                "promotes a token of the text before": promoted in before,
                "continues an earlier occurrence of the current token": promoted
                in {ids[i] for i in after if i <= position},
                "looks at what came after earlier occurrences of the current token": sum(
                    w for key, w in looked if key in after
                )
                >= 0.2,
                "looks at the first position": sum(w for key, w in looked if key == 0) >= 0.5,
            }
            if [each[1] for each in looked].count(weight) == 1:  # no tie for the main position
                expected["looks at the token before"] = position - main == 1 and weight >= 0.2
                expected["looks at earlier occurrences of the current token"] = (
                    main < position and ids[main] == current and weight >= 0.2
                )
            for phrase, holds in expected.items():
                assert bool(found[phrase][n, at]) == holds, phrase


def test_shares_are_the_effect_divided_among_the_promoted_tokens(planted):
    shares = token_shares(planted, "promoted")
    records = planted.records
    expected: dict[int, float] = {}
    effects = records.kl[:, 6].tolist()
    most = sorted(effects)[int(0.98 * len(effects))]
    assert most < max(effects)
    for row in range(len(records)):
        by = records.promoted_by[row, 6].float().clamp_min(0)
        for token, part in zip(
            records.promoted[row, 6].tolist(), (by / by.sum()).tolist(), strict=True
        ):
            expected[token] = expected.get(token, 0) + part * min(effects[row], most)
    total = sum(expected.values())
    for number, token in enumerate(shares.ids.tolist()):
        assert float(shares.share[6, number]) == pytest.approx(
            expected.get(token, 0) / total, abs=1e-5
        )
    torch.testing.assert_close(shares.share.sum(1), torch.ones(40))


def test_the_area_under_the_curve_counts_pairs():
    positive, negative = torch.tensor([0.5, 2.0, 2.0]), torch.tensor([0.1, 0.5, 3.0, 2.0])
    pairs = [(p > n) + (p == n) / 2 for p in positive.tolist() for n in negative.tolist()]
    assert _auroc(positive, negative) == pytest.approx(sum(pairs) / len(pairs))
