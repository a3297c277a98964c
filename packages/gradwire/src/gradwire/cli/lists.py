"""Readers of lists in command-line options: message sizes, codecs, algorithms, and numbers of ranks."""

from __future__ import annotations

from gradwire import collectives, plugins
from gradwire.errors import SpecError, shown
from gradwire.units import format_size, parse_whole

MOST_NBYTES = 1 << 32


def geometric(low_nbytes: int, high_nbytes: int, factor: int) -> tuple[int, ...]:
    """Return the sizes ``low``, ``low * factor``, ... up to ``high``, in bytes. Raises ``SpecError``.

    Examples
    --------
    >>> geometric(1, 10, 2)
    (1, 2, 4, 8)
    """
    if factor < 2:
        raise SpecError(f"expected a whole number of at least 2 for --factor, got {factor}; pass --factor 2")
    if not 1 <= low_nbytes <= high_nbytes:
        raise SpecError(
            "expected sizes of at least 1 byte for --min and --max, in ascending order, got "
            f"{low_nbytes} and {high_nbytes}; pass a --min from 1 byte up to --max"
        )
    _check_most(high_nbytes)
    sizes = [low_nbytes]
    while sizes[-1] * factor <= high_nbytes:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def listed(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``sizes`` in ascending order. Raises ``SpecError`` if a size is repeated, 0, or too large."""
    if min(sizes) < 1 or len(set(sizes)) < len(sizes):
        raise SpecError(
            f"expected distinct sizes of at least 1 byte, got {', '.join(map(str, sizes))}; pass each "
            "size once, and no 0"
        )
    _check_most(max(sizes))
    return tuple(sorted(sizes))


def codec_specs(text: str) -> tuple[str, ...]:
    """Return the canonical specs in a comma-separated list of codecs. Raises ``SpecError``.

    Examples
    --------
    >>> codec_specs("identity,quantize:8,block=256,fp16")
    ('identity', 'quantize:8,block=256', 'fp16')
    """
    from gradwire.codecs import known_names, parse  # only some commands need the kernels

    return _once("--codecs", tuple(str(parse(spec)) for spec in _specs(text, known_names())))


def algorithm_specs(text: str) -> tuple[str, ...]:
    """Return the specs in a comma-separated list of all-reduce algorithms. Raises ``SpecError``.

    Examples
    --------
    >>> algorithm_specs("ring,hierarchical:4,ring+star,tree")
    ('ring', 'hierarchical:4,ring+star', 'tree')
    """
    known = {*collectives.NAMES, *plugins.names(plugins.ALGORITHMS)}
    specs = _once("--algorithms", _specs(text, known))
    for spec in specs:
        collectives.get(spec)
    return specs


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Return the whole numbers in a comma-separated list. Raises ``SpecError``, also for a repeated one."""
    words = _once(option, between_commas(text))
    numbers = [number for word in words if (number := parse_whole(word)) is not None]
    if len(numbers) < len(words):
        raise SpecError(
            f"expected comma-separated whole numbers, such as 2,4,8, for {option}, got {shown(text)}; "
            "pass numbers and commas only"
        )
    return tuple(numbers)


def _specs(text: str, known: set[str]) -> tuple[str, ...]:
    """Return the specs in a comma-separated list whose specs may contain commas themselves."""
    specs: list[str] = []
    for part in between_commas(text):
        begins = part.partition(":")[0] in known or ":" in part
        if specs and not begins and ("=" in part or ":" in specs[-1]):
            specs[-1] += f",{part}"
        else:
            specs.append(part)
    return tuple(specs)


def between_commas(text: str) -> tuple[str, ...]:
    """Return the words of a comma-separated list, without surrounding spaces.

    Examples
    --------
    >>> between_commas("mlp, cnn")
    ('mlp', 'cnn')
    """
    return tuple(part.strip() for part in text.split(","))


def _once(option: str, words: tuple[str, ...]) -> tuple[str, ...]:
    for number, word in enumerate(words):
        if word in words[:number]:
            raise SpecError(f"expected distinct words for {option}, got {word} twice; pass {word} once")
    return words


def _check_most(nbytes: int) -> None:
    if nbytes > MOST_NBYTES:
        raise SpecError(
            f"expected a size of at most {format_size(MOST_NBYTES)}, got {format_size(nbytes)}; pass a "
            "smaller size"
        )
