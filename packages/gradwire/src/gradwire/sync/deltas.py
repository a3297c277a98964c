"""The codec of weights whose receivers hold the last version: only what changed travels, without loss."""

from __future__ import annotations

from typing import ClassVar, Final

import torch

from gradwire.codecs import Bf16, Codec, codec_of
from gradwire.codecs.base import malformed
from gradwire.codecs.spec import error
from gradwire.entropy import DeltaDecoder, DeltaEncoder
from gradwire.entropy.delta import DeltaHeader, WordName, max_nbytes, words_dtype
from gradwire.errors import PayloadError, TensorError, VersionError
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.replicas import WEIGHTS

CHECKED_EVERY: Final = 100
"""After how many versions a hash of the weights goes along, as with the first delta from held words."""
WORTH_NBYTES: Final = 4096
"""In fewer bytes of weights, headers outweigh what a delta saves, so that a copy is nothing to note."""
LARGER: Final = "what changed in the weights would take more bytes than a copy of them"
"""The ledger's reason for a full copy to receivers that hold the last version."""


class Deltas(Codec):
    """Weights as what changed in them since the last time.

    Formula: y = x, or, with ``delta:bf16``, x rounded to nearest even. Payload: what a ``DeltaEncoder`` makes
    of a segment (``docs/weight_delta.md``): at first a full copy, and so whenever a delta would be larger.
    Bound: 0, or that of bf16.

    Unlike the codecs of gradients, it remembers one bucket: all ends keep what they hold of the weights and
    in which version, and refuse a payload that starts from another one. So it has no row in the codecs'
    table; its number in frames is above theirs.

    Parameters
    ----------
    dtype
        What all ends hold of a weight, ``"bf16"`` or ``"fp32"``. Raises ``SpecError`` for others.
    ledger, bucket
        Counts, under that name, full copies that are sent because a delta is larger.

    Attributes
    ----------
    words
        What this end holds: 1-D, of that dtype, on the CPU.
    """

    name: ClassVar[str] = "delta"
    wire_id: ClassVar[int] = 128
    EXAMPLES: ClassVar[tuple[str, ...]] = ("delta:fp32", "delta:bf16")

    def __init__(self, dtype: WordName, ledger: Ledger | None = None, bucket: str = WEIGHTS) -> None:
        self.dtype: WordName = dtype
        self._ledger, self._bucket, self._address = ledger, bucket, 0
        self.hold(torch.empty(0, dtype=words_dtype(dtype), device="cpu"), None)

    def __str__(self) -> str:
        return f"{self.name}:{self.dtype}"

    @classmethod
    def from_spec(cls, argument: str, options: dict[str, str]) -> Deltas:
        """Return the codec. Raises ``SpecError``."""
        if options or argument not in ("bf16", "fp32"):
            raise error(cls.name, "what the receivers hold, fp32 or bf16", argument, cls.EXAMPLES[0])
        return cls("bf16" if argument == "bf16" else "fp32")

    def hold(self, words: torch.Tensor, version: int | None) -> None:
        """Begin with these words, which all ends hold in this version; None if the others hold nothing."""
        self.words, self._version = words, version
        self._encoders: dict[tuple[int, int], DeltaEncoder] = {}
        self._decoders: dict[tuple[int, int], DeltaDecoder] = {}

    def over(self, bucket: torch.Tensor) -> Deltas:
        """Return itself, for the slices of this bucket: their memory tells which words are theirs."""
        if self.words.numel() != bucket.numel():
            with torch.inference_mode(mode=False):  # they are changed again outside
                self.hold(torch.zeros(bucket.numel(), dtype=self.words.dtype, device="cpu"), None)
        self._address = bucket.data_ptr()
        return self

    def max_nbytes(self, n: int) -> int:
        """Return the largest payload, in bytes, of ``n`` elements."""
        return max_nbytes(self.dtype, n)

    def bound(self, x: torch.Tensor) -> float:
        """Return 0, or the bound of bf16."""
        return Bf16().bound(x) if self.dtype == "bf16" else 0.0

    def _encode(self, x: torch.Tensor, out: torch.Tensor) -> int:
        place, words = self._place(x)
        if not x.numel():  # empty slices all lie in one place, which has no version
            return 0
        if place not in self._encoders:
            self._encoders[place] = DeltaEncoder(x, self.dtype, base=words, version=self._version)
        encoder = self._encoders[place]
        before, version = encoder.version, (encoder.version or 0) + 1
        begins = before is not None and before == self._version  # do all ends hold the same words?
        checked = begins or version % CHECKED_EVERY == 0
        payload = encoder.encode(x, version, checked=checked, bounded=True, out=out)
        is_copy = before is not None and DeltaHeader.read(payload).plain
        if is_copy and words.nbytes >= WORTH_NBYTES and self._ledger is not None:
            self._ledger.bypassed(LARGER, self._bucket, words.nbytes)
        return payload.numel()

    def _decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        place, words = self._place(out)
        if not out.numel():
            if payload.numel():
                raise malformed(self, payload, 0, "it must be empty")
        elif place not in self._encoders:  # else it is this end's own payload, and the words are the latest
            self._apply(payload, place, words)
        out.copy_(words)

    def _apply(self, payload: torch.Tensor, place: tuple[int, int], words: torch.Tensor) -> None:
        if place not in self._decoders:
            self._decoders[place] = DeltaDecoder(self.dtype, version=self._version)
        try:
            self._decoders[place].apply(payload, words)
        except VersionError as mismatch:
            found, _, _ = str(mismatch).partition(";")
            raise PayloadError(f"{found}; write, load, and restart on all ranks alike") from mismatch

    def _place(self, part: torch.Tensor) -> tuple[tuple[int, int], torch.Tensor]:
        """Return where a slice of the bucket begins and ends, and its words."""
        start = (part.data_ptr() - self._address) // part.itemsize if part.numel() else 0
        stop = start + part.numel()
        if not 0 <= start <= stop <= self.words.numel():
            raise TensorError(
                f"{self} takes slices of the bucket of {self.words.numel()} weights that it is over, but "
                "got another tensor; call over(bucket) first"
            )
        return (start, stop), self.words[start:stop]


def weight_codec_of(codec: Codec | str | None, name: str, ledger: Ledger | None = None) -> Codec | None:
    """Return the codec of weights: one of ``codec_of``, or what ``delta:fp32`` or ``delta:bf16`` names.

    Raises ``SpecError``.
    """
    if isinstance(codec, str) and codec.partition(":")[0] == Deltas.name:
        return another(Deltas.from_spec(codec.partition(":")[2], {}), ledger)
    return codec_of(codec, name)


def another(codec: Codec, ledger: Ledger | None, bucket: str = WEIGHTS) -> Codec:
    """Return a codec for other receivers, which hold nothing yet; one without a memory serves all."""
    return Deltas(codec.dtype, ledger, bucket) if isinstance(codec, Deltas) else codec


def over(codec: Codec, bucket: torch.Tensor) -> Codec:
    """Return the codec for the slices of a bucket; one without a memory serves all."""
    return codec.over(bucket) if isinstance(codec, Deltas) else codec
