"""Exported blocks in Icarus Verilog, whose reset is high from time 0."""

from pathlib import Path

import pytest

from gradwire.codecs import TABLE, parse
from gradwire_gateware.blocks import BLOCKS
from gradwire_gateware.export import export
from gradwire_gateware.ring_routes import host_order
from support.hardware_chunks import EXHAUSTIVE, raw
from support.icarus import STREAMS, simulated, unknown, words
from test_ring import laplace, summed

LANGUAGES = ("-g2005", "-g2012")
SMALL = {"chunk_words": 32, "flows": 1, "ranks": 2, "lanes": 2}
FEW = ("skid-buffer", "float-adder", "collector", "inceptionn-compressor", "bfp-decompressor")
RESETS = ("reg rst = 1; initial #47 rst = 0;", "reg rst = 0; initial begin #2 rst = 1; #45 rst = 0; end")
"""High from time 0, and from a little later, which always worked."""


@pytest.mark.parametrize("block", BLOCKS if EXHAUSTIVE else FEW)
def test_a_reset_from_time_0_leaves_no_more_unknown_than_a_later_one(block: str, tmp_path: Path) -> None:
    kind = BLOCKS[block]
    spec = next((row.codec.EXAMPLES[0] for row in TABLE if row.name == kind.codec), None)
    made = export(block, spec, 256, {key: SMALL[key] for key in kind.parameters if key in SMALL})
    wires = [
        f"reg [{port.bits - 1}:0] {port.name} = 0;" if port.direction == "in"
        else f"wire [{port.bits - 1}:0] {port.name};"
        for port in made.ports if port.name != "rst"
    ]  # fmt: skip
    ports = ", ".join(f".{port.name}({port.name})" for port in made.ports)
    rest = [
        f"{block.replace('-', '_')} block({ports});", "always #5 clk = ~clk;",
        'initial begin #300 $dumpfile("end.vcd"); $dumpvars; #1 $finish; end', "endmodule",
    ]  # fmt: skip
    found = []
    for reset in RESETS:
        simulated("\n".join(["module bench;", reset, *wires, *rest]), made.verilog, tmp_path, "-g2012")
        found.append(unknown(tmp_path / "end.vcd"))
    assert found[0] <= found[1]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("spec", "world"), [("identity", 2), ("identity", 3)])
def test_a_ring_reset_from_time_0_gives_the_sums_under_stalls(
    spec: str, world: int, language: str, tmp_path: Path
) -> None:
    codec, width, chunk_words = parse(spec), 256, 8
    values = laplace(1, world, world, chunk_words * width // 32)
    lines = [
        STREAMS,
        "module bench;",
        "reg clk = 0, rst = 1;",
        "always #5 clk = ~clk;",
        "initial #47 rst = 0;",
    ]
    wanted = []
    for rank in range(world):
        taken, given = host_order(rank, world)
        own = list(words([raw(values[0, rank, chunk]) for chunk in taken], width))
        sums = words([raw(summed(codec, values[0], chunk)) for chunk in given], width)
        wanted += [(rank, word) for word in sums]
        (tmp_path / f"in{rank}.hex").write_text("\n".join(f"{word:x}" for word in own))
        for wire in ("s", "m", "tx"):
            lines.append(f"wire {wire}v{rank}, {wire}l{rank}, {wire}r{rank};")
            lines.append(f"wire [{width - 1}:0] {wire}d{rank}; wire [{width // 8 - 1}:0] {wire}k{rank};")
        lines += [
            f'source #(.COUNT({len(own)}), .SEED({rank + 1}), .FILE("in{rank}.hex")) source{rank}'
            f"(clk, rst, sv{rank}, sd{rank}, sk{rank}, sl{rank}, sr{rank});",
            f"wire done{rank};",
            f"sink #(.COUNT({world * chunk_words}), .SEED({rank + 9}), .NUMBER({rank})) sink{rank}"
            f"(clk, rst, mv{rank}, md{rank}, mk{rank}, ml{rank}, mr{rank}, done{rank});",
        ]
        ends = {"s": f"s{{}}{rank}", "m": f"m{{}}{rank}", "tx": f"tx{{}}{rank}"}
        ends["rx"] = f"tx{{}}{(rank - 1) % world}"
        wires = [
            f".{port}_axis_t{name}({end.format(name[0])})"
            for port, end in ends.items()
            for name in ("valid", "ready", "last", "data", "keep")
        ]
        lines.append(f"ring_engine engine{rank}(.clk(clk), .rst(rst), {', '.join(wires)});")
    all_done = " && ".join(f"done{rank}" for rank in range(world))
    lines += [f"always @(posedge clk) if ({all_done}) $finish;", "initial #40000 $finish;", "endmodule"]
    made = export("ring-engine", spec, width, {"ranks": world, "chunk_words": chunk_words})
    printed = simulated("\n".join(lines), made.verilog, tmp_path, language)
    shown = [line.split() for line in printed.splitlines() if line[:1].isdigit()]
    assert "x" not in printed
    assert sorted((int(rank), int(word, 16)) for rank, word in shown) == sorted(wanted)
