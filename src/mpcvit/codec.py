"""Plain values, as TOML and JSON hold them, into typed values and back.

Every file and every message passes here. A dataclass validates itself on
construction with `require`. What it refuses is reported with the key's path
and, for a misspelling, the nearest valid name.
"""

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from mpcvit.errors import UserError, nearest
from mpcvit.storage import read_json, read_text, write_text

if sys.version_info >= (3, 11):
    import tomllib
else:  # spu has wheels for 3.10 too, which lacks tomllib
    import tomli as tomllib

Value = TypeVar("Value")

_FORMATS: dict[type, tuple[str, str]] = {}  # format and noun of registered types
_UPGRADES: dict[str, Callable[[Any], Any]] = {}  # from a former format to the present one
_TAGS: dict[type, str] = {}
ADDED: Mapping[str, bool] = {"added": True}
"""Metadata of a field that files of earlier versions lack.

It is written only if it differs from its default, so that what does not use it keeps its
bytes and its digest.
"""


def read_toml(path: Path, what: str) -> dict[str, Any]:
    text = read_text(path, what)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error


def encode(value: Any) -> Any:
    """Return the plain values behind a value: the inverse of `decode`.

    >>> encode((Path("photo.png"), {"images": 2}))
    ['photo.png', {'images': 2}]
    """
    if isinstance(value, SelfEncoded):
        return value.encoded()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (item.name for item in dataclasses.fields(value) if _is_written(value, item))
        return {**_heading(type(value)), **{name: encode(getattr(value, name)) for name in names}}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {encode(key): encode(item) for key, item in value.items()}
    return value


def decode(kind: type[Value], document: Any, where: str) -> Value:
    """Return a value of a type from plain values, as TOML or JSON give them.

    `where` names the document in what is refused.
    """
    return _convert(kind, document, "", where)


@runtime_checkable
class SelfEncoded(Protocol):
    """A type with a plain form of its own, such as a name instead of a whole row."""

    def encoded(self) -> Any: ...

    @classmethod
    def decoded(cls, document: Any, where: str) -> "SelfEncoded": ...


def register(
    format: str, noun: str, upgrades: Mapping[str, Callable[[Any], Any]] | None = None
) -> Callable[[type[Value]], type[Value]]:
    """Give a dataclass a file format; its documents then begin with `"format"`.

    `noun` says what the file is, as in "a latency file". `upgrades` has a function per
    former format that can still be read; it returns the same document in the present one.
    """

    def remember(kind: type[Value]) -> type[Value]:
        _FORMATS[kind] = (format, noun)
        _UPGRADES.update(upgrades or {})
        return kind

    return remember


def tagged(tag: str) -> Callable[[type[Value]], type[Value]]:
    """Name a dataclass that is one of several; its documents then begin with `"is"`."""

    def remember(kind: type[Value]) -> type[Value]:
        _TAGS[kind] = tag
        return kind

    return remember


def save(path: Path, value: Any) -> None:
    """Write a value of a registered type as a JSON file."""
    write_text(path, json.dumps(encode(value), indent=2) + "\n")


def load(kind: type[Value], path: Path) -> Value:
    """Read the JSON file of a registered type."""
    _, noun = _FORMATS[kind]
    return decode(kind, read_json(read_text(path, noun), str(path)), str(path))


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


def spell(value: Any) -> str:
    """Return an encoded value as `override` reads it.

    >>> spell(["1.norm2"]), spell(True), spell({"size": 1e-6})
    ('["1.norm2"]', 'true', '{size = 1e-06}')
    """
    match value:
        case list() | tuple():
            return f"[{', '.join(map(spell, value))}]"
        case dict():
            items = (f"{key} = {spell(item)}" for key, item in value.items())
            return f"{{{', '.join(items)}}}"
    return json.dumps(value)


def _is_written(value: Any, item: "dataclasses.Field[Any]") -> bool:
    return not item.metadata.get("added") or getattr(value, item.name) != item.default


def _heading(kind: type) -> dict[str, str]:
    """Return the keys with which a document of a type begins."""
    heading = {}
    if kind in _FORMATS:
        heading["format"] = _FORMATS[kind][0]
    if kind in _TAGS:
        heading["is"] = _TAGS[kind]
    return heading


def _build(cls: type[Value], document: Any, prefix: str, origin: str) -> Value:
    if cls in _FORMATS:
        format, noun = _FORMATS[cls]
        version = document.get("format") if isinstance(document, Mapping) else None
        if version in _UPGRADES:
            document = {**_UPGRADES[version](document), "format": format}
        elif version != format:
            subject = f"{origin}: '{prefix}'" if prefix else origin
            raise UserError(
                f"{subject} is not {_article(noun)}: its format is {version!r}, not {format!r}"
            )
    if not isinstance(document, Mapping):
        subject = f"'{prefix}'" if prefix else "it"
        raise UserError(
            f"{origin}: {subject} must be a section, not {json.dumps(document, default=str)}"
        )
    hints, heading = _hints(cls), _heading(cls)
    fields = {item.name: item for item in dataclasses.fields(typing.cast(Any, cls)) if item.init}
    for key in document:
        if key not in fields and key not in heading:
            known = [_join(prefix, name) for name in fields]
            path = _join(prefix, str(key))
            raise UserError(f"{origin}: unknown key '{path}'; {nearest(path, known)}")
    values: dict[str, Any] = {}
    for name, item in fields.items():
        path = _join(prefix, name)
        if name in document:
            values[name] = _convert(hints[name], document[name], path, origin)
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            kind = "section" if dataclasses.is_dataclass(hints[name]) else "key"
            raise UserError(f"{origin}: {kind} '{path}' is missing")
    try:
        return cls(**values)
    except _RefusedError as refusal:
        raise UserError(f"{origin}: '{_join(prefix, refusal.key)}' {refusal.reason}") from None


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _convert(hint: Any, value: Any, path: str, origin: str) -> Any:
    if hint is Any:
        return value
    subject = f"{origin}: '{path}'" if path else origin
    outer = typing.get_origin(hint)
    # in Python 3.10 `list[int]` calls itself a type
    is_class = outer is None and isinstance(hint, type)
    if is_class and issubclass(hint, SelfEncoded):
        return hint.decoded(value, subject)
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, path, origin)
    if is_class and issubclass(hint, Enum):
        names = [member.value for member in hint]
        if value not in names:
            raise UserError(f"{subject} cannot be {value!r}; {nearest(str(value), names)}")
        return hint(value)
    if outer in (typing.Union, types.UnionType):
        return _convert_union(typing.get_args(hint), value, path, origin)
    if outer in (tuple, list, Sequence):
        return _convert_items(hint, value, path, origin)
    if outer in (dict, Mapping):
        return _convert_mapping(typing.get_args(hint), value, path, origin)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is float and number:
        if not abs(value) <= sys.float_info.max:  # a whole number may be too large for a float
            raise UserError(f"{subject} must be finite, not {_shown(value)}")
        return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if type(value) is hint:
        return value
    raise UserError(f"{subject} must be {_name_hint(hint)}, not {_shown(value)}")


def _convert_union(hints: tuple[Any, ...], value: Any, path: str, origin: str) -> Any:
    if value is None and type(None) in hints:
        return None
    members = [hint for hint in hints if hint is not type(None)]
    if len(members) == 1:
        return _convert(members[0], value, path, origin)
    by_tag = {_TAGS.get(member): member for member in members}
    assert None not in by_tag, f"every member of {members} needs a tag"
    tag = value.get("is") if isinstance(value, Mapping) else None
    if tag not in by_tag:
        subject = f"{origin}: '{path}'" if path else origin
        known = ", ".join(sorted(str(name) for name in by_tag))
        raise UserError(f"{subject} must be one of {known}, not {_shown(tag or value)}")
    return _build(by_tag[tag], value, path, origin)


def _convert_items(hint: Any, value: Any, path: str, origin: str) -> Any:
    outer, items = typing.get_origin(hint), typing.get_args(hint)
    if not isinstance(value, (list, tuple)):
        raise UserError(f"{origin}: '{path}' must be a list, not {_shown(value)}")
    if outer is not tuple or items[-1] is Ellipsis:
        items = (items[0],) * len(value)
    if len(items) != len(value):
        raise UserError(f"{origin}: '{path}' must have {len(items)} entries, not {len(value)}")
    converted = (
        _convert(item, entry, f"{path}[{index}]", origin)
        for index, (item, entry) in enumerate(zip(items, value, strict=True))
    )
    return list(converted) if outer is list else tuple(converted)


def _convert_mapping(hints: tuple[Any, Any], value: Any, path: str, origin: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        subject = f"{origin}: '{path}'" if path else origin
        raise UserError(f"{subject} must be an object, not {_shown(value)}")
    return {
        _convert(hints[0], key, path, origin): _convert(hints[1], item, _join(path, key), origin)
        for key, item in value.items()
    }


def _join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


def _name_hint(hint: Any) -> str:
    names = {
        **{int: "a whole number", float: "a number", str: "a string", bool: "true or false"},
        dict: "an object",
        list: "a list",
    }
    return names.get(hint, str(hint))


def _shown(value: Any) -> str:
    """Return a refused value, short enough for a sentence."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
