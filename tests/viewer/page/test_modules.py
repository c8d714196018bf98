"""The files of the page: no build step, nothing from elsewhere, no markup made of text."""

from __future__ import annotations

import re

import pytest

from saccade.viewer import export as offline

IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)


def page_folder():
    from importlib.resources import files

    return files("saccade.viewer") / "page"


def files_ending(*endings: str) -> dict[str, str]:
    return {
        file.name: file.read_text(encoding="utf-8")
        for file in page_folder().iterdir()
        if file.name.endswith(endings)
    }


def test_every_name_that_is_imported_is_exported():
    modules = files_ending(".js")
    for name, text in modules.items():
        for names, source in IMPORT.findall(text):
            wanted = {each.strip() for each in names.split(",") if each.strip()}
            missing = wanted - set(EXPORT.findall(modules[source]))
            assert not missing, f"{name} wants {missing} of {source}"
            for each in wanted:
                assert len(re.findall(rf"\b{each}\b", text)) > 1, f"{name} does not use {each}"


def test_nothing_is_exported_for_nobody():
    modules = files_ending(".js")
    wanted = {
        (source, each.strip())
        for text in modules.values()
        for names, source in IMPORT.findall(text)
        for each in names.split(",")
    }
    idle = [
        f"{name}: {each}"
        for name, text in modules.items()
        for each in EXPORT.findall(text)
        if (name, each) not in wanted
    ]
    assert not idle


def test_modules_are_imported_in_the_one_way_that_the_offline_file_understands():
    for name, text in files_ending(".js").items():
        imports = re.findall(r"^import\b", text, re.MULTILINE)
        assert len(imports) == len(IMPORT.findall(text)), name
        assert "import(" not in text, name
        assert "import.meta" not in text, name


@pytest.mark.parametrize(
    "forbidden", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
)
def test_text_never_becomes_markup(forbidden):
    assert not [name for name, text in files_ending(".js").items() if forbidden in text]


def test_nothing_comes_from_another_host():
    for name, text in files_ending(".js", ".css", ".html").items():
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name


def test_modules_stay_short():
    lengths = {name: text.count("\n") for name, text in files_ending(".js").items()}
    assert not {name: lines for name, lines in lengths.items() if lines > 210}


def test_the_offline_file_holds_every_module():
    page = offline.offline_page({"screen": "traces"}, [])
    for name in files_ending(".js"):
        assert f'"saccade/{name}"' in page
