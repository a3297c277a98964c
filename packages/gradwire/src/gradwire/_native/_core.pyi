from collections.abc import Sequence

# Arguments are addresses, and lengths in bytes or elements; a, b, c are parameters of the format (see
# native/).
def available_targets() -> list[str]: ...
def target() -> str: ...
def set_target(name: str) -> bool: ...
def max_nbytes(name: str, n: int, a: int, b: int, c: int) -> int: ...
def encode(name: str, x: int, n: int, out: int, a: int, b: int, c: int, threads: int) -> int: ...
def decode(
    name: str, payload: int, nbytes: int, out: int, n: int, a: int, b: int, c: int, add: bool, threads: int
) -> str | None: ...
def largest_bits(x: int, n: int, threads: int) -> int: ...
def scale(x: int, out: int, n: int, exponent: int, add: bool, threads: int) -> None: ...

class Pass:
    LOOK: Pass
    ADD: Pass
    SUBTRACT: Pass
    ADOPT: Pass

def sum_norms(
    how: Pass, x: int, y: int, n: int, start: int, borders: int, ranges: int, sums: int, threads: int
) -> float: ...
def has_ranges(name: str) -> bool: ...
def lose(
    name: str,
    payload: int,
    nbytes: int,
    x: int,
    lost: int,
    n: int,
    a: int,
    b: int,
    c: int,
    adopts: bool,
    divisor: float,
    start: int,
    borders: int,
    ranges: int,
    sums: int,
    compares: bool,
    threads: int,
) -> tuple[str | None, float, bool]: ...
def decode_finished(
    name: str, payload: int, nbytes: int, x: int, n: int, a: int, b: int, c: int, divisor: float, threads: int
) -> tuple[str | None, bool]: ...
def finish(x: int, n: int, divisor: float, threads: int) -> bool: ...
def pack_message(tensors: Sequence[tuple[int, int, int, int, bool]], threads: int) -> list[float]: ...
def entropy_max_nbytes(n: int) -> int: ...
def entropy_encode(symbols: int, n: int, out: int, threads: int) -> int: ...
def entropy_decode(payload: int, nbytes: int, out: int, n: int, threads: int) -> str | None: ...

class Words:
    BF16: Words
    FP32: Words

def delta_max_nbytes(words: Words, n: int) -> int: ...
def delta_encode(
    words: Words,
    sources: Sequence[tuple[int, int, int, int, bool]],
    fronts: bytes,
    out: int,
    align: int,
    code: bool,
    threads: int,
) -> list[tuple[int, int]]: ...
def delta_apply(
    words: Words, bodies: Sequence[tuple[int, int, int, int, bool, bool]], threads: int
) -> tuple[int, str | None]: ...
def hash64(data: int, nbytes: int, threads: int) -> int: ...
def crc32c_of_bytes(data: bytes) -> int: ...
def crc32c(data: int, nbytes: int, seed: int) -> int: ...

# The software NIC (native/nic): a format, two parameters, the codec's wire id and the type of service.
def nic_count_names() -> list[str]: ...
def nic_encode(name: str, a: int, b: int, phase: int, payload: bytes) -> bytes: ...
def nic_decode(name: str, a: int, b: int, phase: int, body: bytes, nbytes: int) -> bytes | None: ...

class NicEngine:
    def __init__(self, name: str, a: int, b: int, wire_id: int, tos: int, merges: bool = False) -> None: ...
    def handle(self, to_link: bool, frame: bytes, cut_nbytes: int) -> list[bytes]: ...
    def counts(self, to_link: bool) -> list[int]: ...

class Nic:
    def __init__(
        self,
        host: int,
        link: int,
        name: str,
        a: int,
        b: int,
        wire_id: int,
        tos: int,
        merges: bool,
        drop: float,
        reorder: float,
        delay_s: float,
        seed: int,
    ) -> None: ...
    def stop(self) -> None: ...
    def counts(self, to_link: bool) -> list[int]: ...

class Status:
    DONE: Status
    FRAME_REFUSED: Status
    PAYLOAD_REFUSED: Status
    LINK_FAILED: Status
    TIMED_OUT: Status
    INTERRUPTED: Status

class End:  # a connection after a run, with the frames that are still in flight
    rank: int
    length: bytes  # the part of the next frame's length that has arrived
    low_water: int
    next_sent: int
    next_received: int
    unsent: list[bytes]  # the unsent rest of each frame, with the frame's length
    received: list[bytes]  # frames that no action has taken
    open: int  # the number of receives whose frames have not arrived completely
    partial: tuple[int, bytes] | None  # the first open receive: its frame's size, and its bytes so far

class Result:
    status: Status
    action: int
    error: int
    announced: int
    refused: bytes
    posted: list[int]
    parts: list[tuple[bool, bool, int]]  # finite sums, finite errors, and bytes of floats sent
    seconds: tuple[float, float, float]
    sizes: tuple[int, int]
    ends: list[End]
    times: tuple[float, float, float]
    interrupt: BaseException | None

def hold_threads() -> None: ...

class Engine:
    def run(
        self,
        peers: Sequence[tuple[int, int, bytes, int, int, int]],
        actions: int,
        numbers: int,
        segments: int,
        segment_count: int,
        parts: Sequence[
            tuple[
                int,
                tuple[str, tuple[int, int, int], tuple[int, int, int], int, int, bool],
                tuple[int, int, int, int] | None,
                tuple[int, int, int, int, int] | None,
                dict[int, int] | None,
            ]
        ],
        flags: int,
        ranks: float,
        coder: object | None,
        timeout_s: float,
        times: tuple[float, float, float],
        threads: int,
        heeds_interrupts: bool,
    ) -> Result: ...

# The replay of exchanges: each rank's rows of actions (address, length, distinct segments) and link, the
# codec's costs by the number of summed gradients, and a host's costs. The result has every rank's costs,
# lane by lane, and the seconds that the busiest link needs for its bytes.
def replay(
    orders: Sequence[tuple[int, int, int]],
    lines: Sequence[tuple[float, float, float, float]],
    points: Sequence[tuple[float, float, float, float, float]],
    call_s: float,
    exact: bool,
    host: tuple[float, float, float, float, float],
    header_nbytes: float,
    group_sizes: Sequence[int],
    core_nbytes_per_s: float,
    first_terms: int,
    lanes: int,
    ahead: int,
    cores: int,
    ranks_per_machine: int,
) -> tuple[list[tuple[float, float, float, float, float, float, int]], float]: ...
