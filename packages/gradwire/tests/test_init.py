from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gradwire
from support.torch_free import check_commands, check_import


@pytest.mark.parametrize(
    "code",
    ["import gradwire", "from gradwire.cli import main; main(['--version'])", "import gradwire.units"],
)
def test_torch_is_not_imported_before_it_is_needed(code: str) -> None:
    check = f"{code}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, timeout=60).returncode == 0


@pytest.mark.parametrize(
    "module",
    [
        "gradwire.cli",
        "gradwire.cli.parser",
        "gradwire.codecs",
        "gradwire.devices",
        "gradwire.files",
        "gradwire.launch.launched",
        "gradwire.machine",
        "gradwire.profile.settings",
        "gradwire.script.command",
        "gradwire.version",
    ],
)
def test_a_module_that_starts_processes_or_commands_does_not_import_torch(module: str) -> None:
    check_import(module)


ATTACHED = """
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
gradwire.attach(DistributedDataParallel(torch.nn.Linear(2, 2)), "fp8").close()
"""
OFFLOADED = """
model = torch.nn.Linear(2, 2)
gradwire.HostOffload(model, torch.optim.SGD(model.parameters(), lr=0.1), "static:16", device="cpu").close()
"""


@pytest.mark.parametrize(
    ("code", "most"),
    [pytest.param(ATTACHED, 150, id="attach"), pytest.param(OFFLOADED, 80, id="HostOffload")],
)
def test_few_modules_are_loaded(code: str, most: int) -> None:
    count = "sum(name.split('.')[0].startswith('gradwire') for name in sys.modules)"
    script = f"import sys, torch, gradwire\n{code}\nprint({count})"
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=100, check=True)
    assert int(done.stdout) <= most


WITHOUT_TORCH = [
    "",
    "--help",
    "plan --help",
    "plan --hosts 8",
    "plan --modle 25M --hosts 8",
    "plan --model 25M --hosts 8 --rate 1gbps",
    "plan --model 25M --hosts 8 --rate 1gbit --latency 50",
    "plan --model 25M --hosts 8 --rate 1gbit --codecs fp8,fp9",
    "plan --model 25M --hosts 8 --rate 1gbit --algorithms rign",
    "plan --model 25M --hosts 8 --rate 1gbit --backward 200",
    "plan --model 0.5 --hosts 8 --rate 1gbit",
    "line-rate --help",
    "line-rate --sizes 4x",
    "doctor --help",
    "doctor now",
    "profile --help",
    "run --help",
    "run --",
    "run --codec fp8 --plan plan.json -- train.py",
    "profile --",
    "profile --hosts 1 -- train.py",
    "codecs --no-measure",
    "codecs --help",
    "codecs --all",
]


def test_help_and_mistakes_do_not_wait_for_torch(tmp_path: Path) -> None:
    check_commands(WITHOUT_TORCH, tmp_path)


def test_every_public_name_loads_and_the_others_are_refused() -> None:
    for name in gradwire.__all__:
        assert getattr(gradwire, name).__name__ == name
        assert name in dir(gradwire)
    with pytest.raises(AttributeError, match="no attribute 'everything'"):
        getattr(gradwire, "every" + "thing")
