"""`saccade atlas`: build the atlas of a model, look heads up in it, find, merge and export."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from saccade.cli import options
from saccade.cli.places import read_head, read_place
from saccade.errors import StoreError, UsageError
from saccade.interp.atlas.atlas_config import AtlasConfig

if TYPE_CHECKING:
    from saccade.interp.atlas.atlas import Atlas
    from saccade.interp.atlas.finder import Found
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.lens_set import Lenses

AtlasFolder = Annotated[
    Path | None,
    typer.Option("--atlas", help="The folder of an atlas. Default: the one in the cache."),
]

ATLAS_BUILD_EXAMPLES = """
saccade atlas build --corpus books/ --corpus wiki.txt
torchrun --nproc-per-node=2 -m saccade atlas build --corpus wiki.txt --tokens 200000 --out atlas
"""


@options.with_options_of(AtlasConfig)
@options.with_model_options
def atlas_build(
    settings: AtlasConfig,
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            help="A text or JSONL file (.gz too), a folder of them, or a hub dataset; can be "
            "repeated. Default: self, text that the model generates."
        ),
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(help="Only this head (9.8) or this layer (9); can be repeated. Default: all."),
    ] = None,
    lens: options.LensName = None,
    without_lenses: Annotated[
        bool, typer.Option("--without-lenses", help="Read no lenses, though there are some.")
    ] = False,
    model: options.ModelOptions = options.DEFAULT_OPTIONS,
    out: Annotated[Path | None, typer.Option(help="Output folder. Default: in the cache.")] = None,
    as_json: options.Json = False,
) -> None:
    """Measure every head of a model over a text: what it does, knows and looks at.

    The exact effect of every head at sampled positions; what its lens predicts there; its attention
    weights at all positions. An interrupted build resumes when it is started again with the same
    options. Started by torchrun, the processes share the text.
    """
    places = [read_place(each) for each in head or []]

    from saccade.interp.atlas.atlas import default_atlas_path
    from saccade.interp.atlas.build import SELF, build_atlas
    from saccade.interp.lenses.gather import FitInterrupted

    is_first = int(os.environ.get("RANK", "0")) == 0
    opened = model.open()
    lenses = None if without_lenses else _lenses(opened, lens, is_quiet=not is_first)
    path = out or default_atlas_path(opened.fingerprint)
    text = corpus or [SELF]
    try:
        with options.showing_progress(is_quiet=not is_first) as progress:
            atlas = build_atlas(
                opened,
                text[0] if len(text) == 1 else text,
                settings,
                heads=places,
                lenses=lenses,
                progress=progress,
                save_to=path,
            )
    except FitInterrupted:
        if is_first:
            typer.echo("the atlas so far is saved; the same command resumes it", err=True)
        raise
    if is_first:
        _show_built(atlas, path, as_json=as_json)


def _lenses(model: LanguageModel, name: str | None, *, is_quiet: bool) -> Lenses | None:
    """The lenses to read: those named, or those of the model in the cache if there are some."""
    from saccade.interp.lenses.lens_set import default_lens_path, find_lenses, load_lenses

    if name is None and not default_lens_path(model).exists():
        if not is_quiet:
            typer.echo(
                "no lenses of this model: the atlas will not say what its heads know "
                "(`saccade lens fit` fits some)",
                err=True,
            )
        return None
    return load_lenses(find_lenses(name, model), model)


def _show_built(atlas: Atlas, path: Path, *, as_json: bool) -> None:
    provenance, left_out = atlas.provenance, atlas.tables.get("left_out", {})
    for part, reason in left_out.items():
        typer.echo(f"note: without {part}: {reason}", err=True)
    if as_json:
        found = {
            "path": str(path),
            "left_out": left_out,
            "positions": len(atlas.records),
            "heads": len(atlas.sites),
            "provenance": asdict(provenance),
        }
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    typer.echo(
        f"{len(atlas.sites)} heads of {provenance.model}: effects at {len(atlas.records):,} "
        f"positions, attention over {atlas.windows.numel():,} tokens of "
        f"{', '.join(provenance.sources)}"
    )
    best = sorted(atlas.heads, key=lambda each: -each.kl)[:5]
    named = ", ".join(f"{each.name} ({each.kl:.3f})" for each in best)
    typer.echo(f"largest mean effects, in nats: {named}\nin {path}")


def found_atlas(folder: Path | None) -> Atlas:
    """The atlas of a folder, or the only one in the cache."""
    from saccade.interp.atlas.atlas import load_atlas
    from saccade.store.atomic import cache_dir

    if folder is not None:
        return load_atlas(folder)
    root = cache_dir() / "atlases"
    known = (
        [each for each in sorted(root.iterdir()) if each.name[0] != "."] if root.is_dir() else []
    )
    if not known:
        raise StoreError(
            f"there is no atlas in {root}",
            hint="build one with `saccade atlas build`; an interrupted build resumes",
        )
    if len(known) > 1:
        raise UsageError(
            f"there are {len(known)} atlases in {root}",
            hint=f"choose with --atlas {known[0]}",
        )
    return load_atlas(known[0])


ATLAS_SHOW_EXAMPLES = """
saccade atlas show --by matters
saccade atlas show 12.3 --json
"""


def atlas_show(
    head: Annotated[
        str | None, typer.Argument(metavar="HEAD", help="A head, such as 9.8. Default: all.")
    ] = None,
    atlas: AtlasFolder = None,
    by: Annotated[
        str, typer.Option(help="Rank all heads by this metric, such as kl, matters, previous.")
    ] = "kl",
    heads: options.HeadsShown = 20,
    as_json: options.JsonOfHeads = False,
) -> None:
    """Show the heads of an atlas, or everything about one head.

    kl is the mean effect of the head on the next-token distribution, in nats; matters is the share
    of positions where it is above 0.01; the label is made by rules from the head's own contexts.
    """
    site = None if head is None else read_head(head)

    from saccade.errors import suggest
    from saccade.interp.atlas.head_page import AtlasPages

    pages = AtlasPages(found_atlas(atlas))
    if site is not None:
        page = pages.page(*site)
        if as_json:
            typer.echo(json.dumps(page, ensure_ascii=False))
        else:
            _show_page(page)
        return
    overview = pages.overview()
    if by not in overview["metrics"]:
        hint = suggest(by, overview["metrics"], f"metrics are {', '.join(overview['metrics'])}")
        raise UsageError(f"no metric {by!r}", hint=hint)
    rows = sorted(
        overview["heads"], key=lambda row: -row[by] if row.get(by) is not None else float("inf")
    )
    if as_json:
        typer.echo(json.dumps({**overview, "heads": rows}, ensure_ascii=False))
        return
    typer.echo(
        f"{overview['model']}: effects at {overview['positions']:,} positions of "
        f"{overview['tokens']:,} tokens"
    )
    last = "" if by in ("kl", "matters") else f"{by[:9]:>10}"
    typer.echo(f"{'head':>6} {'kl':>7} {'matters':>8}{last}  label")
    for row in rows[:heads]:
        value = f"{row[by]:>10.3g}" if last and row.get(by) is not None else " " * len(last)
        label = _shortened(row["label"], 80 - 25 - len(last))
        typer.echo(f"{row['name']:>6} {row['kl']:>7.4f} {row['matters']:>8.1%}{value}  {label}")


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _show_page(page: dict) -> None:
    metrics, does = page["metrics"], page["does"]
    typer.echo(f"head {page['name']} of {page['model']}\n{page['label']['text']}\n")
    typer.echo(
        f"does    mean effect {metrics['kl']:.4f} nats, median {metrics['kl_median']:.4f}, "
        f"above {metrics['kl_95']:.4f} in 5 %"
    )
    for verb in ("promotes", "suppresses"):
        typer.echo(f"  {verb:<10} {_tokens(does[verb])}")
    if page["knows"] is not None:
        typer.echo(f"knows   {_tokens(page['knows']['predicts'])}")
    typer.echo(
        f"looks   first {metrics['first']:.2f}, itself {metrics['self_weight']:.2f}, previous "
        f"{metrics['previous']:.2f}, induction {metrics['induction']:.2f}, distance "
        f"{metrics['distance']:.1f}, entropy {metrics['entropy']:.2f}"
    )
    typer.echo(
        f"  keys       {' '.join(repr(each['text']) for each in page['looks']['key_tokens'][:10])}"
    )
    if "why" in page:
        _show_why(page["why"])
    if page["roles"]:
        best = sorted(page["roles"].items(), key=lambda each: -each[1])
        typer.echo("roles   " + ", ".join(f"{name} {score:.2f}" for name, score in best))
    typer.echo("\nstrongest contexts")
    for context in does["strongest"][:5]:
        _show_context(context)
    typer.echo("\nfrom strong to weak")
    for stratum in does["strata"]:
        top = "" if stratum["to"] is None else f" to {stratum['to']:g}"
        typer.echo(f"  from {stratum['from']:g}{top} nats: {stratum['share']:.1%} of positions")
        for context in stratum["contexts"][:1]:
            _show_context(context)


def _show_why(why: dict) -> None:
    typer.echo(
        f"why     {len(why['directions'])} directions separate attended keys at {why['auroc']:.2f} "
        f"(random {why['auroc_random']:.2f}, no contrast {why['auroc_plain']:.2f}, distance "
        f"{why['auroc_distance']:.2f}, whole score {why['auroc_whole']:.2f})"
    )
    for each in why["directions"]:
        keys = " ".join(repr(token["text"]) for token in each["key_tokens"][:5])
        numbers = f"{each['share']:>6.1%}, position {each['position_share']:>4.0%}"
        typer.echo(f"  {numbers}  {each['name']}; keys {keys}")


def _tokens(found: list[dict]) -> str:
    return " ".join(f"{each['text']!r} {each['share']:.0%}" for each in found[:8])


def _show_context(context: dict) -> None:
    text = "".join(context["tokens"]).replace("\n", "⏎")[-50:]
    promoted = " ".join(repr(text) for text, _ in context["promotes"][:3])
    typer.echo(f"  {context['kl']:8.4f}  …{text} -> {promoted}")


ATLAS_FIND_EXAMPLES = """
saccade atlas find --token " Paris"
saccade atlas find --like 12.3 --where "kl>0.01" --json
"""


def atlas_find(
    token: Annotated[
        str | None, typer.Option(help="Heads that ever promote this token (a word, or exact).")
    ] = None,
    suppressed: Annotated[
        str | None, typer.Option(help="Heads that ever suppress this token.")
    ] = None,
    role: Annotated[str | None, typer.Option(help="Rank heads by their score for a role.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help='A range of a metric, such as "kl>0.01"; can be repeated.'),
    ] = None,
    like: Annotated[
        str | None, typer.Option(help="Rank heads by how similar their effects are to this head's.")
    ] = None,
    matters_in: Annotated[
        str | None, typer.Option(help="Heads with larger effects in this source of the text.")
    ] = None,
    not_in: Annotated[
        str | None, typer.Option(help="Compare with this source. Default: all others.")
    ] = None,
    atlas: AtlasFolder = None,
    heads: options.HeadsShown = 20,
    as_json: options.JsonOfHeads = False,
) -> None:
    """Find heads in an atlas; all conditions must hold, the first one ranks.

    Similarity is the correlation of effects at the same positions. Sources are compared by a rank
    test over windows; one in twenty of the heads it finds is expected by chance.
    """
    site = None if like is None else read_head(like)

    from saccade.interp.atlas.finder import Query, find_heads

    query = Query(
        token=token,
        suppressed=suppressed,
        role=role,
        where=tuple(where or ()),
        like=site,
        matters_in=matters_in,
        not_in=not_in,
    )
    found = find_heads(found_atlas(atlas), query)
    if as_json:
        rows = [{"name": each.name, **asdict(each)} for each in found]
        typer.echo(json.dumps(rows, ensure_ascii=False))
    else:
        _show_found(found, heads)


def _show_found(found: list[Found], heads: int) -> None:
    if not found:
        typer.echo("no head satisfies all conditions", err=True)
        return
    typer.echo(f"{len(found)} heads, ranked by {found[0].what}")
    for each in found[:heads]:
        more = "".join(f"  {name} {value:.3g}" for name, value in each.details.items())
        typer.echo(
            f"{each.name:>6} {each.value:>8.4f}  kl {each.kl:.4f}  matters {each.matters:.1%}{more}"
        )


ATLAS_MERGE_EXAMPLES = """
saccade atlas merge monday tuesday --out week
saccade atlas merge shard-1 shard-2 shard-3 --out whole --without-sequences --json
"""


@options.with_model_options
def atlas_merge(
    folders: Annotated[list[Path], typer.Argument(help="Atlases of one model, of other texts.")],
    out: Annotated[Path, typer.Option(help="Output folder.")],
    without_sequences: Annotated[
        bool,
        typer.Option(
            "--without-sequences",
            help="Do not open the model: no sampled sequences, no directions.",
        ),
    ] = False,
    model: options.ModelOptions = options.DEFAULT_OPTIONS,
    as_json: options.Json = False,
) -> None:
    """Merge atlases that were built of different texts.

    All records and sums are those of one build over all of the texts, to the last bit. Sampled
    sequences are chosen again and directions of queries and keys named again, for which the model
    is opened.
    """
    from saccade.interp.atlas.atlas import load_atlas, merge_atlases
    from saccade.interp.atlas.atlas_parts import with_directions, with_sequences

    merged = merge_atlases([load_atlas(folder) for folder in folders])
    if not without_sequences:
        opened = model.open()
        with options.showing_progress() as progress:
            merged = with_sequences(opened, merged, progress=progress)
            merged = with_directions(opened, merged, progress=progress)
    merged.save(out)
    _show_built(merged, out, as_json=as_json)


ATLAS_EXPORT_EXAMPLES = """
saccade atlas export --to site --out atlas-pages
saccade atlas export --to page --head 9.8 --out head-9.8.html
"""


def atlas_export(
    to: Annotated[
        Literal["csv", "parquet", "headvis", "site", "page"],
        typer.Option(
            help="csv, parquet: a table of all metrics; site: a folder of pages that need no "
            "server; page: one head as one file; headvis: the data of the HeadVis page."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Output file, or folder (site, headvis).")],
    head: Annotated[
        str | None, typer.Option(help="The head of the page, such as 9.8.", metavar="HEAD")
    ] = None,
    atlas: AtlasFolder = None,
    as_json: options.Json = False,
) -> None:
    """Write an atlas for other programs, or as pages for people without saccade.

    A folder that holds anything but an earlier export is refused, and an export that fails leaves
    the earlier one.
    """
    if (head is None) == (to == "page"):
        raise UsageError(
            "which head's page?" if head is None else f"--to {to} writes all heads, not {head}",
            hint="`saccade atlas export --to page --head 9.8` writes the page of one head",
        )
    site = None if head is None else read_head(head)

    _export(found_atlas(atlas), to, out, site)
    files = [out] if out.is_file() else [each for each in out.rglob("*") if each.is_file()]
    size = sum(each.stat().st_size for each in files)
    if as_json:
        typer.echo(json.dumps({"path": str(out), "files": len(files), "bytes": size}))
    else:
        several = f": {len(files)} files, {size / 1e6:.1f} MB" if out.is_dir() else ""
        typer.echo(f"wrote {out}{several}", err=True)


def _export(atlas: Atlas, to: str, out: Path, head: tuple[int, int] | None) -> None:
    from saccade.interp.atlas.atlas_export import (
        table_rows,
        write_csv,
        write_headvis,
        write_parquet,
    )
    from saccade.interp.atlas.labels import make_labels
    from saccade.viewer.atlas_site import write_head_file, write_site

    if head is not None:
        write_head_file(out, atlas, *head)
    elif to == "site":
        with options.showing_progress() as progress:
            write_site(out, atlas, progress=lambda n, of: progress("writing pages", n, of))
    elif to == "headvis":
        write_headvis(out, atlas)
    else:
        rows = table_rows(atlas, [each.text for each in make_labels(atlas)])
        (write_csv if to == "csv" else write_parquet)(out, rows)
