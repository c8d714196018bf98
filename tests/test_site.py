"""The site of `make docs`: it builds without a warning, is complete, and needs no other host."""

import doctest
import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from fuzz_cases import commands

import docs_site

ROOT = Path(__file__).parent.parent
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
NOT_LOADED = {"canonical", "prev", "next", "alternate"}  # what a link element may only name


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built as `make docs` does: a warning ends the build."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


class Parsed(HTMLParser):
    """The ids of a page, where it links to, and what a browser loads with it."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        target = given.get(LOADED.get(tag, ""))
        if target and given.get("rel") not in NOT_LOADED:
            self.loaded.add(target)


@cache
def parsed(page: Path) -> Parsed:
    return Parsed(page.read_text(encoding="utf-8"))


def listed(site: Path) -> set[str]:
    """The pages in the navigation, as `llms.txt` lists them."""
    return set(re.findall(r"^- \[.*\]\((.+\.md)\)$", (site / "llms.txt").read_text("utf-8"), re.M))


def test_every_page_is_in_the_navigation(site):
    found = listed(site)
    pages = {each.relative_to(ROOT / "docs").as_posix() for each in (ROOT / "docs").rglob("*.md")}
    assert {each.replace("README.md", "index.md") for each in pages} <= found
    assert {"contributing.md", "changelog.md"} <= found


def test_every_public_name_of_both_wings_is_in_the_reference(site):
    ids = set().union(*(parsed(page).ids for page in (site / "reference").glob("*.html")))
    public = docs_site.public_names()
    assert not {name for name, module in public.items() if f"{module}.{name}" not in ids}
    plain = "".join(page.read_text("utf-8") for page in (site / "reference").glob("*.md"))
    assert not {name for name in public if f"\n## {name}\n" not in plain}


def test_every_command_and_option_is_in_the_reference(site):
    pages = [page.read_text("utf-8") for page in (site / "reference").glob("*-commands.md")]
    sections = {
        part.splitlines()[0].strip(): part
        for page in pages
        for part in re.split(r"^#{2,3} saccade ", page, flags=re.MULTILINE)[1:]
    }
    wrong = []
    for name, command in commands().items():
        section = sections.get(name, "")
        flags = [opt for each in command.params for opt in each.opts if opt.startswith("--")]
        missing = [flag for flag in flags if flag not in section and flag != "--help"]
        examples = re.findall(rf"^\$ .*\bsaccade {name}\b", section, re.MULTILINE)
        if len(examples) < 2 or missing:
            wrong.append((name, missing))
    assert not wrong


def test_every_link_of_every_page_resolves(site):
    wrong = []
    for page in site.rglob("*.html"):
        for link in parsed(page).links | parsed(page).loaded:
            parts = urlsplit(link)
            if parts.scheme or page.name == "404.html":  # its links start at the root of a host
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not target.exists() or (
                parts.fragment
                and target.suffix == ".html"
                and unquote(parts.fragment) not in parsed(target).ids
            ):
                wrong.append(f"{page.relative_to(site)}: {link}")
    assert not wrong


def test_links_between_markdown_files_resolve_as_they_stand():
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    wrong = [
        f"{file.relative_to(ROOT)}: {target}"
        for file in files
        for line in docs_site.outside_fences(file.read_text("utf-8"))
        for _, target, _ in docs_site.LINK.findall(line)
        if not re.match(r"[a-z]+:|#", target)
        and not (file.parent / target.partition("#")[0]).exists()
    ]
    assert not wrong


def test_nothing_is_loaded_from_another_host(site):
    pages = {page.relative_to(site): parsed(page).loaded for page in site.rglob("*.html")}
    assert not {page: far for page, all_ in pages.items() if (far := {*filter(is_far, all_)})}
    styles = "".join(each.read_text("utf-8") for each in site.rglob("*.css"))
    assert not [url for url in re.findall(r"url\(([^)]+)\)", styles) if is_far(url.strip("\"'"))]


def is_far(url: str) -> bool:
    return url.startswith(("http:", "https:", "//"))


def test_every_page_has_its_markdown_beside_it(site):
    for name in listed(site):
        text = (site / name).read_text("utf-8")
        assert (site / name).with_suffix(".html").is_file()
        assert text.startswith("# ") and "\n::: " not in text


def test_a_page_of_code_shows_the_file_that_a_guide_links_to(site):
    shown = (site / "source/saccade/zoo/models/ram.py.html").read_text("utf-8")
    assert "class" in shown and 'href="../source/saccade/' in (
        site / "guide/glimpses.html"
    ).read_text("utf-8") + (site / "uses/heads.html").read_text("utf-8")


def test_links_out_of_the_docs_lead_to_pages_of_the_site():
    assert docs_site.repository_path("uses/heads.md", "../benchmarks.md") == "docs/benchmarks.md"
    assert docs_site.repository_path("contributing.md", "docs/lenses.md") == "docs/lenses.md"
    assert docs_site.repository_path("systems.md", "https://arxiv.org") is None
    assert docs_site.site_of("saccade/viewer/README.md") == "source/saccade/viewer/readme.md"
    assert docs_site.path_of("source/saccade/viewer/readme.md") == "saccade/viewer/README.md"


def test_the_examples_of_the_hook_hold():
    assert doctest.testmod(docs_site) == (0, 3)
