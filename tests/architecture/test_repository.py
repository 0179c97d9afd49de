"""The repository works anywhere: exact pins, no machine's paths, no download addresses."""

import importlib.metadata
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from source_tree import ROOT, repository_files

# Written apart, so that this file does not hold what it looks for.
HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("repo1", "maven"),
        ("repo", "maven"),
        ("deb", "debian"),
        ("registry", "npmjs"),
        ("conda", "anaconda"),
    )
)
FOLDERS = tuple(f"/{name}/" for name in ("home", "root", "Users", "work", "opt"))
ANYWHERE = re.compile(
    "|".join(
        [rf"(?<![\w.}}~*\])]){folder}\w" for folder in FOLDERS] + [re.escape(h) for h in HOSTS]
    )
)


def pins() -> dict[str, str]:
    """What constraints.txt says, by canonical name."""
    found = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.+]*", line), f"not an exact pin: {line!r}"
        name, _, version = line.partition("==")
        assert name not in found, f"pinned twice: {name}"
        found[name] = version
    return found


def wanted() -> list[Requirement]:
    """Everything that pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    texts = list(project["project"]["dependencies"])
    for extra in project["project"].get("optional-dependencies", {}).values():
        texts += extra
    texts += project["dependency-groups"]["dev"] + project["build-system"]["requires"]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("requirement", wanted(), ids=str)
def test_every_dependency_is_pinned_within_its_range(requirement):
    name = canonicalize_name(requirement.name)
    assert name in pins(), f"{name} has no pin; run `make pins`"
    assert requirement.specifier.contains(pins()[name], prereleases=True)


def test_what_is_installed_is_what_is_pinned():
    wrong = []
    for name, version in pins().items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed != version and name not in ("pip", "setuptools"):
            wrong.append(f"{name} is {installed}, pinned is {version}")
    assert not wrong, "\n".join(wrong)


def test_no_machine_and_no_registry_is_named():
    wrong = []
    for path in repository_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if found := ANYWHERE.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number} names {found[0]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", [".ci/run", "scripts/setup.sh"])
def test_scripts_stop_at_the_first_error(path):
    script = ROOT / path
    assert script.stat().st_mode & 0o111, f"{path} is not executable"
    assert "set -euo pipefail" in script.read_text()


def test_continuous_integration_calls_the_same_door():
    lines = [
        line
        for line in (ROOT / ".ci" / "run").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert lines[-1] == "exec make test"
    assert "export HEADWATER_REQUIRE_ALL=1" in lines


def test_every_verb_has_its_help():
    makefile = (ROOT / "Makefile").read_text()
    [declared] = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    helped = re.findall(r"^([a-z][a-z-]*):.*## \S", makefile, re.MULTILINE)
    assert declared.split() == helped
