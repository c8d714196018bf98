"""The provenance in the manifest of a run."""

import shutil
import subprocess

import pytest

from saccade.zoo.training import run_folder

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A git repository with a package in it, which stands for this one."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("1\n")
    (tmp_path / "README.md").write_text("1\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=first")
    monkeypatch.setattr(run_folder, "HERE", package)
    return tmp_path


def git(folder, *words):
    who = ("-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_commit_of_a_run_is_the_latest_of_the_code(repository):
    latest = git(repository, "rev-parse", "HEAD")
    assert len(run_folder.commit()) >= 10 and latest.startswith(run_folder.commit())


def test_the_commit_has_a_plus_only_if_files_of_the_package_differ_from_it(repository):
    clean = run_folder.commit()
    (repository / "README.md").write_text("2\n")
    (repository / "package" / "new.py").write_text("2\n")
    assert run_folder.commit() == clean
    (repository / "package" / "__init__.py").write_text("2\n")
    assert run_folder.commit() == f"{clean}+"


def test_code_that_is_installed_inside_another_repository_has_no_commit(repository, monkeypatch):
    installed = repository / "site-packages" / "saccade"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("1\n")
    monkeypatch.setattr(run_folder, "HERE", installed)
    assert run_folder.commit() == ""
