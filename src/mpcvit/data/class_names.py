"""Classes of a data set and of a model, matched by their names."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mpcvit.errors import UserError

_LISTED = 5


@dataclass(frozen=True, kw_only=True)
class ClassMatch:
    """A match of a data set's classes with those of a model, as numbers in the data's order."""

    places: tuple[int, ...]
    sentence: str


def match_classes(found: Sequence[str], known: Sequence[str], *, where: str) -> ClassMatch:
    """Match the classes of a data set with those of a model by name.

    Case, spaces, underscores and hyphens make no difference. A data set may lack classes.
    If the model's classes are numbers alone, the order decides.

    >>> match_classes(["ant", "bee"], ["Bee", "ant"], where="photos").places
    (1, 0)
    >>> match_classes(["ant", "bee"], ["LABEL_0", "LABEL_1"], where="photos").places
    (0, 1)
    """
    if _are_numbers(known) and not set(found) <= set(known):
        if len(found) != len(known):
            raise UserError(
                f"{where} has {len(found)} classes, but the model has {len(known)} without names; "
                "import it again with --class-names"
            )
        return ClassMatch(
            places=tuple(range(len(found))),
            sentence="matched by order, because the model's classes have no names",
        )
    names = _by_name(found, where)
    # names that the data does not have may be ambiguous: ImageNet has two cranes
    _by_name([name for name in known if _plain(name) in names], "the model")
    place_of = {_plain(name): index for index, name in enumerate(known)}
    missing = [found[index] for name, index in names.items() if name not in place_of]
    if missing:
        rest = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        raise UserError(
            f"{where} has classes that the model does not know: {', '.join(missing[:_LISTED])}"
            f"{rest}; the model's begin with {', '.join(known[:_LISTED])}: rename the folders, or "
            "import the model again with --class-names"
        )
    places = tuple(place_of[_plain(name)] for name in found)
    return ClassMatch(places=places, sentence=_describe(found, places, len(known)))


def _describe(found: Sequence[str], places: tuple[int, ...], count: int) -> str:
    moved = [index for index, place in enumerate(places) if index != place]
    some = "" if len(found) == count else f", {len(found)} of {count}"
    if not moved:
        return f"matched by name{some}, in the same order"
    shown = ", ".join(f"{found[index]} is {places[index]}" for index in moved[:_LISTED])
    rest = f" and {len(moved) - _LISTED} more" if len(moved) > _LISTED else ""
    return f"matched by name{some}, in another order: {shown}{rest}"


def _by_name(names: Sequence[str], where: str) -> dict[str, int]:
    places: dict[str, int] = {}
    for index, name in enumerate(names):
        if (other := places.setdefault(_plain(name), index)) != index:
            raise UserError(
                f"{where} has the classes {names[other]!r} and {name!r}, whose names are the "
                "same but for case and spaces: give one of them another name"
            )
    return places


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def _are_numbers(names: Sequence[str]) -> bool:
    return all(re.fullmatch(r"(LABEL_)?\d+", name) for name in names)
