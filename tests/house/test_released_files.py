"""Files for tools outside Python: each passes its own linter, and says what the project says elsewhere."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import archer

ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent
WORKFLOW = ROOT / ".github" / "workflows" / "test.yml"
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def lint(tool: str, *arguments: str | Path) -> None:
    done = subprocess.run(
        [TOOLS / tool, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def fits(schema: str, *files: Path) -> None:
    lint("check-jsonschema", "--builtin-schema", f"vendor.{schema}", "--default-filetype", "yaml", *files)


def test_the_version_is_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"] and "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "archer.__version__"}
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == archer.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest and newest[1] == archer.__version__


def test_the_citation_fits_its_schema():
    fits("citation-file-format", ROOT / "CITATION.cff")


def test_the_workflow_fits_its_schema_and_runs_the_one_command():
    fits("github-workflows", WORKFLOW)
    job = yaml.safe_load(WORKFLOW.read_text())["jobs"]["test"]
    assert any(step.get("run", "").startswith("make test") for step in job["steps"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {text.rpartition(" ")[2] for text in project["classifiers"] if re.search(r":: 3\.\d+$", text)}
    assert set(job["strategy"]["matrix"]["python"]) == named


def test_the_issue_forms_fit_their_schemas():
    forms = [form for form in FORMS if form.name != "config.yml"]
    assert forms
    fits("github-issue-forms", *forms)
    fits("github-issue-config", *(form for form in FORMS if form not in forms))


def test_yaml_is_tidy():
    lint("yamllint", "--strict", ".github", "scripts", "mkdocs.yml", "CITATION.cff", "archer/conf")


def test_shell_scripts_pass_shellcheck():
    scripts = [
        path for suffix in ("sh", "bash", "sbatch") for path in (ROOT / "scripts").rglob(f"*.{suffix}")
    ]
    lint("shellcheck", "--external-sources", "--source-path=SCRIPTDIR", ROOT / ".ci" / "run", *scripts)


@pytest.mark.parametrize(
    ("file", "constraints"),
    [("Dockerfile", "constraints.txt"), ("Dockerfile.gpu", "constraints-gpu.txt")],
)
def test_an_image_takes_its_versions_from_the_constraints_alone(file, constraints):
    lint("hadolint", "--failure-threshold=info", file)
    text = (ROOT / file).read_text()
    ((named, extras),) = re.findall(r'pip install --no-cache-dir -c (\S+) "\.\[([\w,]+)\]"', text)
    assert named == constraints
    assert text.count("pip install") == 1 and "==" not in text
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= known.keys() - {"dev", "docs"}
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY")]
    assert {name for names in copied for name in names} <= kept
