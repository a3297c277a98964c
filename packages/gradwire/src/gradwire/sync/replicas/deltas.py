"""Lossless deltas of weights: a codec for receivers that hold the previous version."""

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
from gradwire.sync.replicas.broadcast import WEIGHTS

CHECKED_EVERY: Final = 100
"""The number of versions between hashes of the weights; the first delta after ``hold`` has a hash, too."""
WORTH_NBYTES: Final = 4096
"""The size of weights from which full copies are counted, in bytes; in smaller payloads, headers dominate."""
LARGER: Final = "the changes of the weights would take more bytes than a full copy"
"""The ledger's reason for a full copy to receivers that hold the previous version."""


class Deltas(Codec):
    """A codec for the difference between weights and their previous version.

    Formula: y = x, or, with ``delta:bf16``, x rounded to nearest even. Payload: the output of a
    ``DeltaEncoder`` for a segment (``docs/weight_delta.md``): first a full copy, and a full copy again if a
    delta would be larger. Bound: 0, or the bound of bf16.

    Unlike the codecs of gradients, this codec has a state for one bucket. The sender and every receiver keep
    the weights and their version, and refuse a delta from a different version. So this codec has no row in
    the codecs' table, and its wire id is above the wire ids of the table.

    ``dtype`` is the format in which all ends hold a weight (``words``: 1-D, on the CPU). The ledger, if any,
    counts full copies sent because a delta is larger, under the name ``bucket``.
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
        """Return the codec of a spec's argument. Raises ``SpecError``."""
        if options or argument not in ("bf16", "fp32"):
            raise error(cls.name, "the receivers' format, fp32 or bf16", argument, cls.EXAMPLES[0])
        return cls("bf16" if argument == "bf16" else "fp32")

    def hold(self, words: torch.Tensor, version: int | None) -> None:
        """Start from the weights ``words``, which all ends hold as ``version``; None if no end holds them."""
        self.words, self._version = words, version
        self._encoders: dict[tuple[int, int], DeltaEncoder] = {}
        self._decoders: dict[tuple[int, int], DeltaDecoder] = {}

    def over(self, bucket: torch.Tensor) -> Deltas:
        """Set the bucket of the slices, which are located by memory address, and return the codec itself."""
        if self.words.numel() != bucket.numel():
            with torch.inference_mode(mode=False):  # later changes may be outside of inference mode
                self.hold(torch.zeros(bucket.numel(), dtype=self.words.dtype, device="cpu"), None)
        self._address = bucket.data_ptr()
        return self

    def max_nbytes(self, n: int) -> int:
        """Return the size of the largest payload of ``n`` elements, in bytes."""
        return max_nbytes(self.dtype, n)

    def bound(self, x: torch.Tensor) -> float:
        """Return 0, or the bound of bf16."""
        return Bf16().bound(x) if self.dtype == "bf16" else 0.0

    def _encode(self, x: torch.Tensor, out: torch.Tensor) -> int:
        place, words = self._place(x)
        if not x.numel():  # empty slices share one place, which has no version
            return 0
        if place not in self._encoders:
            self._encoders[place] = DeltaEncoder(x, self.dtype, base=words, version=self._version)
        encoder = self._encoders[place]
        before, version = encoder.version, (encoder.version or 0) + 1
        begins = before is not None and before == self._version  # the hash shows if the ends' words differ
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
        elif place not in self._encoders:  # else this end encoded the payload, and holds the latest words
            self._apply(payload, place, words)
        out.copy_(words)

    def _apply(self, payload: torch.Tensor, place: tuple[int, int], words: torch.Tensor) -> None:
        if place not in self._decoders:
            self._decoders[place] = DeltaDecoder(self.dtype, version=self._version)
        try:
            self._decoders[place].apply(payload, words)
        except VersionError as mismatch:
            found, _, _ = str(mismatch).partition(";")
            raise PayloadError(f"{found}; restart all ranks from the same checkpoint") from mismatch

    def _place(self, part: torch.Tensor) -> tuple[tuple[int, int], torch.Tensor]:
        """Return the start and end of a bucket's slice, and its words."""
        start = (part.data_ptr() - self._address) // part.itemsize if part.numel() else 0
        stop = start + part.numel()
        if not 0 <= start <= stop <= self.words.numel():
            raise TensorError(
                f"{self} expected a slice of its bucket of {self.words.numel()} weights, got another "
                "tensor; call over(bucket) first"
            )
        return (start, stop), self.words[start:stop]


def weight_codec_of(codec: Codec | str | None, name: str, ledger: Ledger | None = None) -> Codec | None:
    """Return the codec of weights for a spec of ``codec_of``, or for ``delta:fp32`` or ``delta:bf16``."""
    if isinstance(codec, str) and codec.partition(":")[0] == Deltas.name:
        return another(Deltas.from_spec(codec.partition(":")[2], {}), ledger)
    return codec_of(codec, name)


def another(codec: Codec, ledger: Ledger | None, bucket: str = WEIGHTS) -> Codec:
    """Return a codec for new receivers, which hold no weights yet, or ``codec`` itself if it has no state."""
    return Deltas(codec.dtype, ledger, bucket) if isinstance(codec, Deltas) else codec


def over(codec: Codec, bucket: torch.Tensor) -> Codec:
    """Return ``codec``; if it has a state, first set the bucket whose slices it encodes next."""
    return codec.over(bucket) if isinstance(codec, Deltas) else codec
