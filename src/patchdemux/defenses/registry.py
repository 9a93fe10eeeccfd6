"""The defenses by name: those of this package, and those that other packages bring.

Another package brings one with an entry point:

    [project.entry-points."patchdemux.defenses"]
    my-defense = "my_package.my_module:MyDefense"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from patchdemux.defenses.base import Defense

GROUP = "patchdemux.defenses"

BUILT_IN = {
    "double-masking": "patchdemux.defenses.double_masking:DoubleMasking",
    "feature-masking": "patchdemux.defenses.feature_masking:FeatureMasking",
    "local-votes": "patchdemux.defenses.local_votes:LocalVotes",
    "robust-masking": "patchdemux.defenses.local_votes:RobustMasking",
    "smoothing": "patchdemux.defenses.smoothing:Smoothing",
    "interval-bounds": "patchdemux.defenses.interval_bounds:IntervalBounds",
}
"""Name and place of every defense of this package; what it needs is imported when it is used."""


def available() -> dict[str, str]:
    """Name and place ("module:Class") of every defense that is installed."""
    return BUILT_IN | {
        point.name: point.value
        for point in sorted(entry_points(group=GROUP))
        if point.name not in BUILT_IN
    }


def defense_class(name: str) -> type[Defense]:
    """The class of a defense, imported."""
    places = available()
    if name not in places:
        raise ValueError(f"there is no defense {name!r}; there are: {', '.join(places)}")
    module, _, attribute = places[name].partition(":")
    kind = getattr(import_module(module), attribute, None)
    if not (isinstance(kind, type) and issubclass(kind, Defense)):
        raise ValueError(f"the defense {name} is said to be {places[name]}, which is no Defense")
    return kind


def make_defense(name: str, settings: Mapping[str, Any] | None = None) -> Defense:
    """The defense of that name, with its settings; lists become tuples, as JSON has no tuples.

    >>> make_defense("double-masking", {"masks": [3, 2]})
    DoubleMasking(masks=(3, 2), center='median', guard='both')
    """
    kind = defense_class(name)
    known: list[str] = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    given = {key: as_tuples(value) for key, value in (settings or {}).items()}
    if unknown := [key for key in given if key not in known]:
        raise ValueError(
            f"{name} has no setting {unknown[0]!r}; its settings are: {', '.join(known) or 'none'}"
        )
    try:
        return kind(**given)
    except TypeError as error:
        raise ValueError(f"{name} cannot be made with {given}: {error}") from error


def name_of(defense: Defense) -> str | None:
    """The name under which a defense's class is registered; None if it is not."""
    kind = type(defense)
    place = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, known in available().items() if known == place), None)


def as_tuples(value: Any) -> Any:
    """Lists as tuples, which a frozen dataclass can compare and hash."""
    return tuple(map(as_tuples, value)) if isinstance(value, list | tuple) else value
