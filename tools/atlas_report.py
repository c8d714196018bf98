"""The tables and pictures of docs/atlas.md, from an atlas.

    python tools/atlas_report.py ATLAS                        # Markdown
    python tools/atlas_report.py ATLAS --png docs/atlas.png   # and the pictures

Prints the heads with the largest mean effects, effects by depth, how metrics over the text agree
with the published tests of roles, and how directions of queries and keys separate attended keys.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import torch
from scipy.stats import spearmanr

from saccade.interp.atlas.atlas import Atlas, load_atlas
from saccade.interp.atlas.labels import Label, make_labels
from saccade.interp.atlas.token_shares import token_shares
from saccade.store.atomic import atomic_file

SHOWN, TOKENS, ROLE_HEADS = 20, 5, 5
# What over the text corresponds to a test of a role: a metric, and what it is.
OVER_TEXT = {
    "induction": ("induction", "attention to what came after earlier occurrences"),
    "previous": ("previous", "attention to the token before"),
    "name-mover": ("kl", "mean effect"),
    "copy": ("kl", "mean effect"),
    "sink": ("first", "attention to the first position"),
}


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(each)} |" for each in lines)


def code(text: str) -> str:
    """A token as code, safe in a table."""
    return f"`{text!r}`".replace("|", "\\|")


def largest(atlas: Atlas, labels: list[Label]) -> str:
    """The heads with the largest mean effects."""
    promoted = token_shares(atlas, "promoted")
    top = promoted.ids[promoted.top(TOKENS)].tolist()
    order = sorted(range(len(atlas.sites)), key=lambda at: -atlas.heads[at].kl)[:SHOWN]
    rows = []
    for at in order:
        head, label = atlas.heads[at], labels[at]
        roles = sorted(head.roles.items(), key=lambda each: -each[1])[:2]
        rows.append(
            [
                head.name,
                f"{head.kl:.4f}",
                f"{head.matters:.0%}",
                f"{head.look.first:.2f}",
                f"{head.look.distance:.0f}",
                " ".join(code(each) for each in atlas.show(top[at])),
                label.short.replace("|", "\\|"),
                ", ".join(f"{name} {score:.2f}" for name, score in roles),
            ]
        )
    columns = ["head", "effect", "matters", "first", "distance", "promotes", "label", "roles"]
    return table(columns, rows)


def by_depth(atlas: Atlas) -> str:
    """Effects and attention of fifths of the layers."""
    layers = sorted({layer for layer, _ in atlas.sites})
    total = sum(head.kl for head in atlas.heads)
    rows = []
    for part in range(5):
        some = layers[part * len(layers) // 5 : (part + 1) * len(layers) // 5]
        heads = [head for head in atlas.heads if head.layer in some]
        if not heads:
            continue
        rows.append(
            [
                f"{some[0]} to {some[-1]}",
                f"{mean(head.kl for head in heads):.4f}",
                f"{sum(head.kl for head in heads) / total:.0%}",
                f"{mean(head.matters for head in heads):.1%}",
                f"{mean(head.look.first for head in heads):.2f}",
                f"{mean(head.look.distance for head in heads):.0f}",
            ]
        )
    columns = ["layers", "mean effect", "share of all", "matters", "first", "distance"]
    return table(columns, rows)


def concentration(atlas: Atlas) -> Iterator[str]:
    """How few heads have most of the effect, and how few positions of a head."""
    kl = atlas.records.kl.double()
    means = kl.mean(0).sort(descending=True).values
    shares = means.cumsum(0) / means.sum()
    for n in (1, 20, 54):
        if n <= len(shares):
            share = f"{shares[n - 1]:.0%} of all effects"
            yield f"- the {n} largest of {len(shares)} heads have {share}"
    strongest = kl.sort(0, descending=True).values[: max(1, len(kl) // 100)].sum(0) / kl.sum(0)
    yield f"- 1 % of the positions have {strongest.median():.0%} of the effect of a head (median)"
    never = float((kl.mean(0) < 1e-3).double().mean())
    yield f"- {never:.0%} of the heads have a mean effect below 0.001 nats"


def agreement(atlas: Atlas) -> str:
    """Scores in the published tests beside what the same heads do over the text."""
    tests = atlas.tables.get("role_tests", {})
    rows = []
    for role in tests:
        heads = [head for head in atlas.heads if role in head.roles]
        scores = [head.roles[role] for head in heads]
        best = sorted(heads, key=lambda each: -each.roles[role])[:ROLE_HEADS]
        metric, what = OVER_TEXT.get(role, ("kl", "mean effect"))
        values = [float(head.to_dict()[metric]) for head in heads]
        found = float(spearmanr(scores, values).statistic)
        effect = float(spearmanr(scores, [head.kl for head in heads]).statistic)
        rows.append(
            [
                role,
                ", ".join(f"{head.name} ({head.roles[role]:.2f})" for head in best),
                what,
                f"{found:+.2f}",
                f"{effect:+.2f}",
            ]
        )
    columns = ["role", "best heads by its test", "over the text", "rank correlation", "with effect"]
    return table(columns, rows)


def paths(atlas: Atlas) -> Iterator[str]:
    """Pairs of heads that compose most, beside random ones."""
    found = atlas.tables.get("paths")
    if found:
        rank, low, high = found["rank_correlation"]
        interval = f"{rank:.2f} [{low:.2f}, {high:.2f}]"
        yield f"- composition scores and measured paths: rank correlation {interval}"
        for name in ("largest_kl", "control_kl"):
            value, low, high = (1e6 * each for each in found[name])
            yield f"- {name}: {value:.1f} [{low:.1f}, {high:.1f}] millionths of a nat"


def reasons(atlas: Atlas) -> Iterator[str]:
    """How far directions of queries and keys separate attended keys."""
    why = list(atlas.tables.get("why", {}).values())
    for name in ("auroc", "auroc_plain", "auroc_random", "auroc_distance", "auroc_whole"):
        values = torch.tensor([row[name] for row in why if row.get(name) is not None])
        if len(values):
            low, high = values.quantile(torch.tensor([0.25, 0.75])).tolist()
            yield f"- {name}: median {values.median():.2f}, quartiles {low:.2f} and {high:.2f}"


def knowledge(atlas: Atlas) -> Iterator[str]:
    """How far lenses agree with effects."""
    known = [head for head in atlas.heads if head.agreement is not None]
    if known:
        agreements = [head.agreement or 0.0 for head in known]
        yield f"- lens and exact effect: mean correlation {mean(agreements):.2f}"
        strong = sorted(known, key=lambda each: -each.kl)[:SHOWN]
        yield f"- of the {SHOWN} heads above: {mean(h.agreement or 0.0 for h in strong):.2f}"


def draw(atlas: Atlas, path: Path) -> None:
    """Mean effects as layers x heads, and effect against attention to the first position."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layers = sorted({layer for layer, _ in atlas.sites})
    n_heads = 1 + max(head for _, head in atlas.sites)
    grid = torch.full((len(layers), n_heads), float("nan"))
    for head in atlas.heads:
        grid[layers.index(head.layer), head.head] = max(head.kl, 1e-6)
    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.6])
    image = left.imshow(grid.log10().numpy(), origin="lower", aspect="auto", cmap="viridis")
    left.set_xlabel("head")
    left.set_ylabel("layer")
    left.set_title("mean effect, log10 of nats", fontsize="medium")
    figure.colorbar(image, ax=left)
    first = [head.look.first for head in atlas.heads]
    dots = right.scatter(
        first, [head.kl for head in atlas.heads], c=[h.layer for h in atlas.heads], s=14
    )
    for head in sorted(atlas.heads, key=lambda each: -each.kl)[:12]:
        right.annotate(head.name, (head.look.first, head.kl), fontsize="x-small")
    right.set_yscale("log")
    right.set_xlabel("mean attention to the first position")
    right.set_ylabel("mean effect, nats")
    right.set_title("a dot is a head, coloured by layer", fontsize="medium")
    figure.colorbar(dots, ax=right, label="layer")
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def main() -> None:
    """Print the tables, and write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("atlas", type=Path)
    parser.add_argument("--png", type=Path)
    given = parser.parse_args()
    atlas = load_atlas(given.atlas)
    sections = {
        "The largest effects": [largest(atlas, make_labels(atlas))],
        "By depth": [by_depth(atlas), *concentration(atlas)],
        "Roles": [agreement(atlas)],
        "Lenses": list(knowledge(atlas)),
        "Paths": list(paths(atlas)),
        "Why": list(reasons(atlas)),
    }
    for title, parts in sections.items():
        print(f"\n## {title}\n", *parts, sep="\n")
    if given.png is not None:
        draw(atlas, given.png)


if __name__ == "__main__":
    main()
