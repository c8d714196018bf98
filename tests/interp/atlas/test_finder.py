"""Finding heads: each condition against a loop over the records."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import mannwhitneyu

from saccade.errors import UsageError
from saccade.interp.atlas.finder import Query, find_heads


def test_heads_that_ever_promote_a_token_are_all_found_and_no_other(atlas):
    token = int(atlas.records.promoted[0, 0, 0])
    text = atlas.tokens[token]
    found = {(each.layer, each.head) for each in find_heads(atlas, Query(token=text))}
    same = [id_ for id_, each in atlas.tokens.items() if each == text or each.strip() == text]
    expected = set()
    for at, site in enumerate(atlas.sites):
        rows = atlas.records.promoted_by[:, at] > 0
        if torch.isin(atlas.records.promoted[:, at][rows], torch.tensor(same)).any():
            expected.add(site)
    assert found == expected


def test_a_token_that_no_head_promotes_names_the_nearest(atlas):
    records = atlas.records
    token = int(records.promoted[0, 0, 0])
    other = replace(
        atlas, records=replace(records, promoted=torch.full_like(records.promoted, token))
    )
    with pytest.raises(UsageError, match="no head of this atlas promotes") as caught:
        find_heads(other, Query(token="qqqzz"))
    assert repr(atlas.tokens[token]) in caught.value.hint


def test_ranges_of_metrics_keep_the_heads_inside_them(atlas):
    bound = sorted(each.kl for each in atlas.heads)[20]
    found = find_heads(atlas, Query(where=(f"kl>={bound}", "layer<3")))
    assert {each.name for each in found} == {
        each.name for each in atlas.heads if each.kl >= bound and each.layer < 3
    }
    assert [each.kl for each in found] == sorted((each.kl for each in found), reverse=True)
    for wrong in ("kl", "kl>x", "kll>1"):
        with pytest.raises(UsageError):
            find_heads(atlas, Query(where=(wrong,)))


def test_a_copy_of_a_head_is_the_most_similar_one(atlas):
    kl = atlas.records.kl.clone()
    kl[:, 31] = kl[:, 7] * 2  # everywhere twice as large
    found = find_heads(replace(atlas, records=replace(atlas.records, kl=kl)), Query(like=(0, 7)))
    assert (found[0].layer, found[0].head) == atlas.sites[31]
    assert found[0].value == pytest.approx(1.0, abs=0.01)
    assert len(found) == 39
    assert found[1].value < 0.9


def test_a_head_with_larger_effects_in_one_text_is_found_there_and_not_in_the_other(atlas):
    kl = atlas.records.kl.clone()
    in_red = atlas.source[atlas.records.window.long()] == 0
    kl[in_red, 12] *= 30
    other = replace(atlas, records=replace(atlas.records, kl=kl))
    (first, *_) = find_heads(other, Query(matters_in="red"))
    assert (first.layer, first.head) == atlas.sites[12]
    assert atlas.sites[12] not in {
        (each.layer, each.head) for each in find_heads(other, Query(matters_in="blue"))
    }
    means = {}
    for row in range(len(kl)):
        means.setdefault(int(atlas.records.window[row]), []).append(float(kl[row, 12].log()))
    sides = [
        [sum(v) / len(v) for w, v in means.items() if int(atlas.source[w]) == side]
        for side in (0, 1)
    ]
    statistic = mannwhitneyu(*sides, alternative="greater").statistic
    assert first.value == pytest.approx(statistic / (len(sides[0]) * len(sides[1])), abs=1e-6)
    with pytest.raises(UsageError, match="no source of this atlas is called"):
        find_heads(atlas, Query(matters_in="green"))


def test_what_is_missing_is_said(atlas):
    with pytest.raises(UsageError, match="holds no roles"):
        find_heads(replace(atlas, tables={}), Query(role="induction"))
    with pytest.raises(UsageError, match="where else"):
        find_heads(atlas, Query(not_in="red"))
    with_role = replace(atlas, tables={"roles": {"2.3": {"induction": 0.7}}})
    (found,) = find_heads(with_role, Query(role="induction"))
    assert (found.name, found.value) == ("2.3", pytest.approx(0.7))
    with pytest.raises(UsageError, match="no role 'inductio'"):
        find_heads(with_role, Query(role="inductio"))
