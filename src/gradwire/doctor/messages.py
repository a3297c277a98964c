"""What ranks say to each other beside their links: JSON under a word, in the store that all of them share."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store  # torch.distributed exports them at run time only
from torch.distributed import DistStoreError

from gradwire.errors import LinkError


class Words:
    """One rank's way to say and to hear, through the store that all ranks share."""

    def __init__(self, store: Store) -> None:
        self._store = PrefixStore("gradwire/doctor", store)

    def say(self, word: str, value: object) -> None:
        """Let every rank know a value, once, under a word. Raises ``LinkError``."""
        try:
            self._store.set(word, json.dumps(value))
        except RuntimeError as error:
            raise LinkError("the store of the ranks is gone, and the process that held it") from error

    def hear(self, word: str, timeout_s: float) -> Any:
        """Return what somebody said under a word.

        Raises
        ------
        LinkError
            When nobody does within the timeout, in seconds; when the process is gone that holds the store.
        """
        try:
            self._store.wait([word], timedelta(seconds=timeout_s))
            return json.loads(self._store.get(word))
        except DistStoreError as error:
            raise LinkError(f"waiting for the word {word!r}: nothing came within {timeout_s:g} s") from error
        except RuntimeError as error:
            gone = "the process that held the store is gone"
            raise LinkError(f"waiting for the word {word!r}: {gone}") from error
