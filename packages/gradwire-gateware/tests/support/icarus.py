"""Icarus Verilog: programs that simulate exported blocks with streams of words."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from support.programs import program

STREAMS = r"""
module source #(parameter WIDTH = 256, COUNT = 1, SEED = 1, FILE = "") (
  input clk, input rst,
  output tvalid, output [WIDTH-1:0] tdata, output [WIDTH/8-1:0] tkeep, output tlast, input tready);
  reg [WIDTH+WIDTH/8:0] words [0:COUNT-1];
  integer at = 0, seed = SEED;
  reg going = 0;
  initial $readmemh(FILE, words);
  assign {tlast, tkeep, tdata} = words[at];
  assign tvalid = going && at < COUNT;
  always @(posedge clk) if (!rst) begin
    if (tvalid && tready) at <= at + 1;
    if (!tvalid || tready) going <= $random(seed);
  end
endmodule

module sink #(parameter WIDTH = 256, COUNT = 1, SEED = 1, NUMBER = 0) (
  input clk, input rst, input tvalid, input [WIDTH-1:0] tdata, input [WIDTH/8-1:0] tkeep, input tlast,
  output reg tready, output done);
  integer at = 0, seed = SEED;
  initial tready = 0;
  assign done = at >= COUNT;
  always @(posedge clk) if (!rst) begin
    tready <= $random(seed);
    if (tvalid && tready) begin
      $display("%0d %h", NUMBER, {tlast, tkeep, tdata});
      at <= at + 1;
    end
  end
endmodule
"""
"""A host that gives the words of a file, and one that shows what it takes; both stall at random."""


def simulated(bench: str, verilog: str, folder: Path, language: str) -> str:
    """Return what the module ``bench`` prints, in a language such as ``-g2012``."""
    (folder / "block.v").write_text(verilog)
    (folder / "bench.v").write_text(bench)
    subprocess.run(
        [program("iverilog"), language, "-s", "bench", "-o", "bench", "bench.v", "block.v"],
        cwd=folder, check=True, timeout=120,
    )  # fmt: skip
    done = subprocess.run(
        [program("vvp"), "-n", "bench"], cwd=folder, check=True, timeout=120, capture_output=True, text=True
    )
    return done.stdout


def words(packets: Iterable[bytes], width: int) -> Iterator[int]:
    """Yield the words of packets as ``{tlast, tkeep, tdata}``."""
    nbytes = width // 8
    for packet in packets:
        for at in range(0, len(packet), nbytes):
            part = packet[at : at + nbytes]
            last = at + nbytes >= len(packet)
            yield int.from_bytes(part, "little") | ((1 << len(part)) - 1 | last << nbytes) << width


def unknown(vcd: Path) -> set[str]:
    """Return the signals whose values at the end of a dump have unknown bits."""
    scopes: list[str] = []
    names: dict[str, list[str]] = {}
    values: dict[str, str] = {}
    for line in vcd.read_text().splitlines():
        match line.split():
            case ["$scope", _, name, *_]:
                scopes.append(name)
            case ["$upscope", *_]:
                scopes.pop()
            case ["$var", _, _, mark, name, *_]:
                names.setdefault(mark, []).append(".".join([*scopes, name]))
            case [value, mark] if value.startswith("b"):
                values[mark] = value
            case [value] if value[0] in "01xz":
                values[value[1:]] = value[0]
    return {name for mark, value in values.items() if "x" in value for name in names[mark]}
