"""The parts of the site that are made from the code: a hook of mkdocs, run by `make docs`.

- The reference: the public names from `saccade/__init__.pyi`, the commands from `saccade.cli.main`.
- A page for every file of the code that a guide links to, so that its link works on the site too.
- CONTRIBUTING.md and CHANGELOG.md, which stand outside of docs/.
- Every page as Markdown beside its HTML, and `llms.txt`, which lists them.

Links in docs/ are relative, as on GitHub; here those that leave docs/ are turned to these pages.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args, get_origin, get_type_hints

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
# Pages that are copies of files outside of docs/, by the file's path in the repository.
COPIES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
FRONT = "index.md"  # where links to README.md lead
SOURCE = "source"  # the folder of the pages of code
REFERENCE = {
    "language-models": ("Language models in Python", ("interp",)),
    "attention-systems": ("Attention systems in Python", ("zoo",)),
    "traces": ("Traces and pages in Python", ("trace", "viewer")),
    "errors": ("Errors", ("errors",)),
}
"""The pages of the reference: a title, and the folders of saccade whose public names it has."""
COMMAND_PAGES = {
    "language-model-commands": ("Commands for language models", "Language models"),
    "attention-system-commands": ("Commands for attention systems", "Attention systems"),
    "machine-commands": ("Commands about this machine", "This machine"),
}
"""The pages of commands: a title, and the panel of `saccade --help` that it has."""
MANNERS = (
    "`saccade --help` lists the commands, and each shows this text with `--help`. `--debug` shows "
    "the traceback of an error, in every command."
)
ABOUT = "Every name here is imported from `saccade` itself: `from saccade import {first}`."
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^(`{3,}|~{3,})")
DIRECTIVE = re.compile(r"^::: ([\w.]+)\n(?:    .*\n?)*", re.MULTILINE)
LANGUAGES = {".py": "python", ".pyi": "python", ".json": "json", ".toml": "toml", ".js": "js"}


# Pages that are made.


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made to those of docs/."""
    made = {
        **{site: (ROOT / path).read_text(encoding="utf-8") for path, site in COPIES.items()},
        **{f"reference/{name}.md": python_page(name) for name in REFERENCE},
        **{f"reference/{name}.md": command_page(name) for name in COMMAND_PAGES},
    }
    written = {
        each.src_uri: each.content_string for each in files if each.src_uri.endswith(".md")
    } | made
    for site, text in written.items():
        for path in code_links(site, text):
            made.setdefault(site_of(path), source_page(path))
    for site, text in made.items():
        files.append(File.generated(config, site, content=text))
    return files


def public_names() -> dict[str, str]:
    """Each public name and the module that defines it, from the stub, in its order."""
    stub = ast.parse((ROOT / "saccade" / "__init__.pyi").read_text(encoding="utf-8"))
    return {
        alias.name: f"saccade.{node.module}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def python_page(name: str) -> str:
    """A page of the reference, as mkdocstrings reads it: a directive for each public name."""
    title, folders = REFERENCE[name]
    here = {k: at for k, at in public_names().items() if at.split(".")[1] in folders}
    parts = [f"# {title}", ABOUT.format(first=min(here, key=str.lower))]
    for each, module in here.items():
        parts.append(
            f"::: {module}.{each}\n    options:\n      heading: {each}\n      toc_label: {each}\n"
        )
    return "\n\n".join(parts)


def source_page(path: str) -> str:
    """A page with one file of the repository, which the search leaves out."""
    text = (ROOT / path).read_text(encoding="utf-8")
    head = f"---\ntitle: {PurePosixPath(path).name}\nsearch:\n  exclude: true\n---\n"
    if path.endswith(".md"):
        return f"{head}\n{text}"
    language = LANGUAGES.get(PurePosixPath(path).suffix, "text")
    return f"{head}\n# `{path}`\n\n``````{language}\n{text.rstrip()}\n``````\n"


# The commands.


def command_page(name: str) -> str:
    """A page with every command of a panel: its help, examples, arguments and options."""
    from typer.main import get_command

    from saccade.cli.main import COMMANDS, GROUPS, PANELS, app

    title, panel = COMMAND_PAGES[name]
    whole: Any = get_command(app)
    parts = [
        f"# {title}",
        MANNERS,
    ]
    for each in PANELS[panel]:
        if each not in GROUPS:
            made = whole.commands[each]
            parts += [f"## saccade {each}", *command_text(made, COMMANDS[each])]
            continue
        group = GROUPS[each]
        parts += [f"## saccade {each}", group.about]
        for inner, command in group.commands.items():
            made = whole.commands[each].commands[inner]
            parts += [f"### saccade {each} {inner}", *command_text(made, command)]
    return "\n\n".join(parts) + "\n"


def command_text(made: Any, command: Any) -> Iterator[str]:
    """The Markdown of one command: its help, examples, arguments and options."""
    yield made.help
    lines = [f"$ {line}" for line in command.examples.strip().splitlines()]
    yield "\n".join(["```console", *lines, "```"])
    hints = get_type_hints(command.run, include_extras=True)
    rows = [_row(each, hints[each.name]) for each in made.params if each.name in hints]
    if rows:
        yield "\n".join(["| | default | |", "|---|---|---|", *rows])


def _row(parameter: Any, hint: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    if not parameter.opts[0].startswith("-"):
        names = [parameter.metavar or parameter.name.upper()]
    elif value := _value(hint):
        names[-1] += f" {value}"
    cells = (
        ", ".join(f"`{each}`" for each in names),
        "required" if parameter.required else _default(parameter.default),
        (parameter.help or "").replace("*", "\\*").replace("<", "&lt;"),
    )
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def _value(hint: Any) -> str:
    """How the value of an option is written; empty for one that takes none.

    >>> _value(int | None), _value(Literal["mean", "zero"]), _value(bool)
    ('INT', 'mean|zero', '')
    """
    if get_origin(hint) is Literal:
        return "|".join(map(str, get_args(hint)))
    if inner := [each for each in get_args(hint) if each is not type(None)]:
        return _value(inner[0])
    if hint is bool:
        return ""
    return "TEXT" if hint is str else hint.__name__.upper()


def _default(value: Any) -> str:
    if value is None or value is False or value in ("", (), []) or callable(value):
        return ""
    return f"`{value}`"


# Links that leave docs/.


def site_of(path: str) -> str:
    """The page of a file of the repository.

    >>> site_of("docs/uses/heads.md"), site_of("saccade/errors.py"), site_of("README.md")
    ('uses/heads.md', 'source/saccade/errors.py.md', 'index.md')
    """
    if path == "README.md":
        return FRONT
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    # A README would be the index of its folder.
    return COPIES.get(path, f"{SOURCE}/{path.replace('README.md', 'readme')}.md")


def path_of(site: str) -> str:
    """The file of the repository that a page is made from; docs/ for the others."""
    copied = {page: path for path, page in COPIES.items()}
    if site.startswith(f"{SOURCE}/"):
        return site.removeprefix(f"{SOURCE}/").removesuffix(".md").replace("readme", "README.md")
    return copied.get(site, f"docs/{site}")


def repository_path(site: str, target: str) -> str | None:
    """The file of the repository that a link of a page leads to; None for all other links."""
    if re.match(r"[a-z]+:|#", target):
        return None
    folder = PurePosixPath(path_of(site)).parent
    path = os.path.normpath(folder / target.partition("#")[0]).replace(os.sep, "/")
    return path if (ROOT / path).is_file() else None


def code_links(site: str, text: str) -> Iterator[str]:
    """The files outside of docs/ that a page links to and that get a page of their own."""
    for line in outside_fences(text):
        for _, target, _ in LINK.findall(line):
            path = repository_path(site, target)
            if path is not None and site_of(path).startswith(f"{SOURCE}/"):
                yield path


def outside_fences(text: str) -> Iterator[str]:
    """The lines of a page that are no code."""
    fence = ""
    for line in text.splitlines():
        mark = FENCE.match(line.strip())
        if mark and not fence:
            fence = mark[1]
        elif mark and line.strip() == fence:
            fence = ""
        elif not fence:
            yield line


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links that leave docs/ to pages of the site."""
    del config, files
    site = page.file.src_uri
    prose = set(outside_fences(markdown))

    def turn(found: re.Match[str]) -> str:
        path = repository_path(site, found[2])
        if path is None:
            return found[0]
        anchor = found[2].partition("#")[2]
        there = os.path.relpath(site_of(path), PurePosixPath(site).parent).replace(os.sep, "/")
        return f"{found[1]}{there}{'#' + anchor if anchor else ''}{found[3]}"

    lines = markdown.split("\n")
    return "\n".join(LINK.sub(turn, line) if line in prose else line for line in lines)


# Docstrings.


class FencedExamples(griffe.Extension):
    """Fences the examples of docstrings: as Markdown, `>>>` would start a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    r"""A docstring with its examples between fences.

    >>> fenced("Adds.\n\n>>> add(1, 2)\n3")
    'Adds.\n\n```pycon\n>>> add(1, 2)\n3\n```'
    """
    blocks = []
    for block in docstring.split("\n\n"):
        indent = block[: len(block) - len(block.lstrip())]
        is_example = block.lstrip().startswith(">>> ")
        blocks.append(f"{indent}```pycon\n{block.rstrip()}\n{indent}```" if is_example else block)
    return "\n\n".join(blocks)


# Every page as Markdown, and the list of them.

_navigation: list[Navigation] = []


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Remember the navigation of this build, for `llms.txt`."""
    del config, files
    _navigation[:] = [nav]
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write the Markdown of every page beside its HTML, and `llms.txt`."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", f"> {config.site_description}"]
    section = None
    for page in _navigation[0].pages:
        text = plain_markdown(page.markdown or "")
        target = site / page.file.dest_uri.replace(".html", ".md")
        target.write_text(text, encoding="utf-8")
        ancestors = [each.title for each in page.ancestors]
        above = ancestors[-1] if ancestors else config.site_name
        if above != section:
            lines.append(f"\n## {above}\n")
            section = above
        lines.append(f"- [{page.title}]({target.relative_to(site).as_posix()})")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def plain_markdown(text: str) -> str:
    """A page with the signature and docstring of each name in place of its directive."""
    if not DIRECTIVE.search(text):
        return text
    examples = griffe.load_extensions(FencedExamples)
    package = griffe.load("saccade", search_paths=[ROOT], extensions=examples)
    return DIRECTIVE.sub(lambda found: _described(package, found[1]), text)


def _described(package: Any, dotted: str) -> str:
    found = package[dotted.removeprefix("saccade.")]
    while found.is_alias:
        found = found.final_target
    about = found.docstring.value if found.docstring else ""
    if found.is_function:
        shown = f"{found.name}({', '.join(map(_parameter, found.parameters))}) -> {found.returns}"
    else:
        shown = f"{found.kind.value} {found.name}"
    members = [
        f"- `{name}`: {each.docstring.value.splitlines()[0]}"
        for name, each in found.members.items()
        if not name.startswith("_") and not each.is_alias and each.docstring
    ]
    return (
        "\n\n".join(
            [f"## {found.name}", f"```python\n{shown}\n```", about, "\n".join(members)]
        ).rstrip()
        + "\n"
    )


def _parameter(parameter: Any) -> str:
    text = parameter.name
    text += f": {parameter.annotation}" if parameter.annotation is not None else ""
    return text + (f" = {parameter.default}" if parameter.default is not None else "")
