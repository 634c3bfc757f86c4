"""Plain values, as TOML and JSON hold them, into frozen dataclasses and back.

A section is a dataclass that validates itself on construction with `require`;
what it refuses is reported with the key's path and, for a misspelling, the
nearest valid name.
"""

import dataclasses
import json
import math
import sys
import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from mpcvit.errors import UserError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:  # spu has wheels for 3.10 too, which lacks tomllib
    import tomli as tomllib

Section = TypeVar("Section")


def read_toml(path: Path, what: str) -> dict[str, Any]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"there is no {what} {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the {what} {path}: {error}") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error


def from_plain(section: type[Section], document: Any, origin: str) -> Section:
    """Build a section from plain values, as TOML or JSON give them."""
    return _build(section, document, "", origin)


def to_plain(value: Any) -> Any:
    """The plain values behind a section: `from_plain`'s inverse."""
    if dataclasses.is_dataclass(value):
        names = (item.name for item in dataclasses.fields(value))
        return {name: to_plain(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return value


class _RefusedError(UserError):
    """A value that a section refuses; `_build` adds where it stands."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"'{key}' {reason}")
        self.key, self.reason = key, reason


def require(condition: bool, key: str, reason: str) -> None:
    """Refuse a value of the section that is being built."""
    if not condition:
        raise _RefusedError(key, reason)


def override(document: dict[str, Any], assignment: str) -> None:
    """Set one `a.b=value` in a document.

    A value is read as TOML, and as a plain string where that fails, so that
    `--set model.attention=softmax` needs no quotes.

    >>> document = {"train": {"epochs": 3}}
    >>> override(document, "train.epochs=7")
    >>> override(document, "model.attention=scaling")
    >>> document
    {'train': {'epochs': 7}, 'model': {'attention': 'scaling'}}
    """
    key, separator, text = assignment.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not separator or not all(path):
        raise UserError(f"--set {assignment!r} must have the form section.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    section = document
    for part in path[:-1]:
        section = section.setdefault(part, {})
        if not isinstance(section, dict):
            raise UserError(f"--set {assignment!r}: '{part}' is a value, not a section")
    section[path[-1]] = value


def _build(cls: type[Section], document: Any, prefix: str, origin: str) -> Section:
    if not isinstance(document, Mapping):
        raise UserError(
            f"{origin}: '{prefix}' must be a section, not {json.dumps(document, default=str)}"
        )
    hints = typing.get_type_hints(cls)
    fields = {item.name: item for item in dataclasses.fields(typing.cast(Any, cls))}
    for key in document:
        if key not in fields:
            known = [_join(prefix, name) for name in fields]
            path = _join(prefix, str(key))
            raise UserError(f"{origin}: unknown key '{path}'; {nearest(path, known)}")
    values: dict[str, Any] = {}
    for name, item in fields.items():
        path = _join(prefix, name)
        if name in document and item.default == () and document[name] in ([], ()):
            values[name] = ()  # empty where nothing is expected unless given
        elif name in document:
            values[name] = _convert(hints[name], document[name], path, origin)
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            kind = "section" if dataclasses.is_dataclass(hints[name]) else "key"
            raise UserError(f"{origin}: {kind} '{path}' is missing")
    try:
        return cls(**values)
    except _RefusedError as refusal:
        raise UserError(f"{origin}: '{_join(prefix, refusal.key)}' {refusal.reason}") from None


def _convert(hint: Any, value: Any, path: str, origin: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, path, origin)
    if isinstance(hint, type) and issubclass(hint, Enum):
        names = [member.value for member in hint]
        if value not in names:
            raise UserError(f"{origin}: '{path}' cannot be {value!r}; {nearest(str(value), names)}")
        return hint(value)
    if typing.get_origin(hint) is tuple:
        return _convert_tuple(hint, value, path, origin)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is float and number:
        if not math.isfinite(value):
            raise UserError(f"{origin}: '{path}' must be finite, not {value}")
        return float(value)
    if type(value) is hint:
        return value
    raise UserError(
        f"{origin}: '{path}' must be {_name_hint(hint)}, not {json.dumps(value, default=str)}"
    )


def _convert_tuple(hint: Any, value: Any, path: str, origin: str) -> tuple[Any, ...]:
    items = typing.get_args(hint)
    if not isinstance(value, (list, tuple)):
        raise UserError(f"{origin}: '{path}' must be a list, not {json.dumps(value, default=str)}")
    if items[-1] is Ellipsis:
        items = (items[0],) * len(value)
    if len(items) != len(value) or not value:
        raise UserError(
            f"{origin}: '{path}' must have {len(items) or 'some'} entries, not {len(value)}"
        )
    return tuple(
        _convert(item, entry, f"{path}[{index}]", origin)
        for index, (item, entry) in enumerate(zip(items, value, strict=True))
    )


def _join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


def _name_hint(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    return names.get(hint, str(hint))
