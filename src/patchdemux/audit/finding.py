"""What an audit finds: one thing that is broken, and where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool


@dataclass(frozen=True)
class Finding:
    """One thing that a true certificate rules out.

    Attributes:
        kind: the check that failed: "coverage", "stored", "curves", "recomputed", "leak", "region",
            "attack" or "contradiction".
        what: what is wrong, in words.
        image, label, region: where, by name, name and number; None where that says nothing.
        patch, picture: files with the patch and with the attacked image, of what an attack found.
    """

    kind: str
    what: str
    image: str | None = None
    label: str | None = None
    region: int | None = None
    patch: str | None = None
    picture: str | None = None

    def __str__(self) -> str:
        parts = (("image", self.image), ("class", self.label), ("region", self.region))
        where = "".join(f", {name} {value}" for name, value in parts if value is not None)
        kept = "" if self.patch is None else f" (patch {self.patch}, picture {self.picture})"
        return f"{self.kind}{where}: {self.what}{kept}"

    def kept_in(self, patch: str, picture: str) -> Finding:
        """The same, with the files that show it."""
        return replace(self, patch=patch, picture=picture)


def places_of(wrong: Bool[np.ndarray, "*shape"]) -> Iterable[tuple[Any, ...]]:
    """The indices at which something is wrong."""
    return (tuple(int(i) for i in index) for index in np.argwhere(wrong))
