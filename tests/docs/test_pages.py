"""Every page is found by who follows links, no link leads nowhere, and what it shows runs as written."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from gradwire.cli import main
from support.project import DOCS, ROOT
from support.snippets import (
    ALONE,
    ARGUMENTS,
    CONTINUED,
    DOCTEST,
    FRAMEWORKS,
    NOT_RUN,
    TORCHRUN,
    UNDER_TORCHRUN,
    WANTS_GROUP,
    blocks_of,
    commands,
    pages,
    python_blocks,
    run_blocks,
)

FRONT = (DOCS / "index.md").resolve()
"""The front page of the site, where the list of pages is the menu; a Git host shows docs/README.md."""


def linked_from(page: Path) -> set[Path]:
    """Return what a page links to in this repository."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in target]
    return {(page.parent / target).resolve() for target in targets}


def test_no_page_is_an_orphan_and_no_link_is_dead() -> None:
    found: set[Path] = set()
    queue = [ROOT / "README.md", DOCS / "README.md"]
    while queue:
        page = queue.pop()
        if page in found:
            continue
        found.add(page)
        for target in linked_from(page):
            assert target.exists(), f"{page.relative_to(ROOT)} links to {target}, which does not exist"
            if target.suffix == ".md":
                queue.append(target)
    pages = {page.resolve() for page in DOCS.rglob("*.md")} - {FRONT}
    assert len(pages) > 20
    assert sorted(str(page.relative_to(ROOT)) for page in pages - found) == []


def test_the_index_names_every_page_itself() -> None:
    pages = {page.resolve() for page in DOCS.rglob("*.md")} - {(DOCS / "README.md").resolve(), FRONT}
    missing = pages - linked_from(DOCS / "README.md")
    assert sorted(str(page.relative_to(ROOT)) for page in missing) == [], "add them to docs/README.md"


@pytest.mark.processes
def test_snippets_of_one_process_run_as_written(tmp_path: Path) -> None:
    run_blocks([block for block in python_blocks() if block.how == ALONE], tmp_path, ranks=None)


@pytest.mark.processes
def test_snippets_of_many_ranks_run_as_written_under_torchrun(tmp_path: Path) -> None:
    blocks = [block for block in python_blocks() if block.how == TORCHRUN]
    printed = run_blocks([block for block in blocks if block.page != FRAMEWORKS], tmp_path, ranks=2)
    of_ddp = printed.partition("ran docs/ddp.md/0\n")[0].rpartition("ran ")[2]
    assert "gradwire, rank 0: 20 steps" in of_ddp


def test_snippets_at_a_prompt_show_what_they_print() -> None:
    shown = [block for block in python_blocks() if block.how == DOCTEST]
    assert len(shown) > 10
    names: dict[str, dict[str, object]] = {}  # a page's prompts go on where the one before ended
    for block in shown:
        known = names.setdefault(block.page, {})
        worked = doctest.DocTestParser().get_doctest(block.text, known, block.name, block.page, 0)
        told: list[str] = []
        assert doctest.DocTestRunner().run(worked, out=told.append, clear_globs=False).failed == 0, told
        known.update(worked.globs)


def test_every_snippet_has_its_way_to_run() -> None:
    blocks = python_blocks()
    names = {block.name for block in blocks}
    tables = {*UNDER_TORCHRUN, *NOT_RUN, *CONTINUED, *ARGUMENTS}
    assert tables <= names, "a block that has gone leaves the tables"
    assert all(len(reason) > 20 for reason in NOT_RUN.values())
    for block in blocks:
        if block.how != DOCTEST:
            compile(block.text, block.name, "exec")
        if WANTS_GROUP.search(block.text):
            assert block.how in (TORCHRUN, None), f"{block.name} belongs to UNDER_TORCHRUN"


def test_every_command_line_is_understood(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(variable, raising=False)
    found = commands()
    assert len({page for page, _ in found}) > 6
    for page, line in found:
        line = re.split(r"\s+#| \|\| |\s{3,}", line)[0]
        if script := re.search(r"(?:examples|bench)/\w+\.py", line):
            assert (ROOT / script[0]).is_file(), f"{page}: {line}"
        for part in line.split(" -- "):  # what a testbed runs is a command, too
            _, gradwire, words = part.rpartition("gradwire ")
            if gradwire:
                assert main([*shlex.split(words), "--no-such-option"]) == 2
                assert ", got --no-such-option" in capsys.readouterr().err, f"{page}: {line}"


@pytest.mark.processes
def test_shell_scripts_are_valid() -> None:
    scripts = [(page, text) for page in pages() for kind, text in blocks_of(page) if kind in ("sh", "bash")]
    assert len(scripts) > 5
    for page, text in scripts:
        checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, f"{page.relative_to(ROOT)}: {checked.stderr}"


def test_manifests_are_valid_and_their_commands_are_understood() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra 'huggingface'")
    found = [text for page in pages() for kind, text in blocks_of(page) if kind == "yaml"]
    service, job = (part for text in found for part in yaml.safe_load_all(text))
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    words = shlex.split(container["command"][-1].replace("$JOB_COMPLETION_INDEX", "3"))
    assert words[:2] == ["exec", "torchrun"]
    options = get_args_parser().parse_args(words[2:])
    assert options.master_addr == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert int(options.nnodes) == job["spec"]["completions"] == job["spec"]["parallelism"]


def test_options_of_torchrun_exist() -> None:
    found = [(page, line) for page, line in commands() if "torchrun " in line]
    assert len(found) > 10
    for page, line in found:
        words = shlex.split(re.split(r"\s+#| \|\| |\s{3,}", line.partition("torchrun ")[2])[0])
        try:
            get_args_parser().parse_args(words)
        except SystemExit:
            pytest.fail(f"{page}: {line}")
