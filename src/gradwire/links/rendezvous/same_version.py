"""All ranks of a group run the same version of gradwire: frames, plans, and states are one version's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwire.errors import LinkError, shown

_LONGEST = 40
"""Characters of a version that errors repeat."""
_SILENT = "an older version"
"""What errors call the version of a rank that tells none."""


def joined(versions: Mapping[int, str]) -> str:
    """Return the versions in the order of their ranks, as text that every version of gradwire can read."""
    return "\n".join(versions[rank] for rank in sorted(versions))


def check_same_version(versions: str, names: Sequence[str], own: str, doing: str) -> None:
    """Raise ``LinkError`` unless all ranks, called ``names``, run the same version.

    Parameters
    ----------
    versions
        What rank 0 made of them with ``joined``; empty where rank 0 runs a gradwire that doesn't.
    names
        What errors call the ranks.
    own
        The version of this process.
    doing
        What errors begin with: the caller and its purpose.
    """
    each = versions.split("\n") if versions else []
    if len(each) not in (0, len(names)):
        raise LinkError(
            f"{doing}: torch's store holds {shown(versions)} as the versions of {len(names)} ranks, which no "
            "rank of gradwire has written; find out who else writes to that store"
        )
    known = zip(names, each, strict=True) if each else [(names[0], ""), ("this rank", own)]
    ranks: dict[str, list[str]] = {}
    for name, version in known:
        ranks.setdefault(version[:_LONGEST] or _SILENT, []).append(name)
    if len(ranks) > 1:
        found = " and ".join(f"{version} runs on {', '.join(own)}" for version, own in ranks.items())
        raise LinkError(
            f"{doing}: all ranks must run the same version of gradwire, but {found}; "
            "install one version everywhere"
        )
