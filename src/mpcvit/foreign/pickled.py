"""Pickles as plain data: an interpreter that imports nothing and calls nothing.

`pickle.Unpickler` with a strict `find_class` would still call whatever lies on
its stack (REDUCE), set attributes on it (BUILD) and size its memo by a number
in the file (LONG_BINPUT). Here an opcode without a handler is refused, a global
stays a name, and only the caller's own builders turn a name into a value.
"""

import pickletools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from mpcvit.errors import UserError


@dataclass(frozen=True, eq=False)
class Name:
    """A class or function that a pickle mentions, unresolved."""

    path: str


@dataclass(eq=False)
class InertObject:
    """An object of a class that no builder knows: it keeps its state and is inert."""

    path: str
    state: Any = None


Builder = Callable[[tuple[Any, ...]], Any]


def read_pickle(
    data: bytes,
    origin: str,
    *,
    builders: Mapping[str, Builder],
    load_persistent: Callable[[Any], Any],
) -> Any:
    """Follow a pickle's opcodes; `builders` maps a global's path to what a call of it gives.

    >>> import collections, pickle
    >>> data = pickle.dumps(collections.Counter("aab"), protocol=2)
    >>> read_pickle(data, "example", builders={}, load_persistent=lambda identity: identity)
    InertObject(path='collections.Counter', state=None)
    """
    machine = _Machine(origin, builders, load_persistent)
    try:
        with warnings.catch_warnings():
            # pickletools warns of odd escapes in names, which nobody will look up.
            warnings.simplefilter("ignore", DeprecationWarning)
            return machine.run(data)
    except (ValueError, LookupError) as error:
        raise UserError(
            f"{origin} is damaged: its pickle breaks off or contradicts itself; "
            "copy or download it again"
        ) from error


class _Machine:
    """The pickle machine: a stack, the stacks below open marks, and a memo."""

    def __init__(
        self,
        origin: str,
        builders: Mapping[str, Builder],
        load_persistent: Callable[[Any], Any],
    ) -> None:
        self.origin = origin
        self.builders = builders
        self.load_persistent = load_persistent
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                break
            if opcode.name in _LITERALS:
                self.stack.append(argument)
            elif opcode.name in _EMPTY:
                self.stack.append(_EMPTY[opcode.name]())
            elif not self._arrange(opcode.name, argument):
                made = self._make(opcode.name, argument)  # may change which list is the stack
                self.stack.append(made)
        return self.stack.pop()

    def _arrange(self, opcode: str, argument: Any) -> bool:
        """Follow an opcode that makes no value; return whether it is one."""
        match opcode:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                self.below.append(self.stack)
                self.stack = []
            case "POP":
                self._take(1)
            case "POP_MARK":
                self._items()
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = self.stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            case "BUILD":
                (state,) = self._take(1)
                # A dictionary's attributes (torch's `_metadata`) say nothing about its items.
                if isinstance(self.stack[-1], InertObject):
                    self.stack[-1].state = state
            case "APPEND":
                self._extend(self._take(1))
            case "APPENDS" | "ADDITEMS":
                self._extend(self._items())
            case "SETITEM":
                self._update(self._take(2))
            case "SETITEMS":
                self._update(self._items())
            case _:
                return False
        return True

    def _make(self, opcode: str, argument: Any) -> Any:
        """Return the value that an opcode puts on the stack."""
        match opcode:
            case "DUP":
                return self.stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                return self.memo[argument]
            case "DICT":
                return _pairs(self._items())
            case "LIST" | "FROZENSET":
                return self._items()
            case "TUPLE":
                return tuple(self._items())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                return tuple(self._take(int(opcode[-1])))
            case "GLOBAL":
                return self._name(*argument.partition(" ")[::2])
            case "STACK_GLOBAL":
                return self._name(*self._take(2))
            case "REDUCE" | "NEWOBJ":
                return self._call(*self._take(2))
            case "NEWOBJ_EX":
                return self._call(*self._take(3)[:2])
            case "OBJ":
                callee, *arguments = self._items()
                return self._call(callee, tuple(arguments))
            case "INST":
                return self._call(self._name(*argument.partition(" ")[::2]), tuple(self._items()))
            case "PERSID":
                return self.load_persistent(argument)
            case "BINPERSID":
                return self.load_persistent(*self._take(1))
        self._refuse(f"uses the pickle opcode {opcode}")

    def _items(self) -> list[Any]:
        """Take everything above the last mark."""
        items, self.stack = self.stack, self.below.pop()
        return items

    def _take(self, count: int) -> list[Any]:
        if count > len(self.stack):
            raise IndexError("the stack is empty")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def _name(self, module: Any, name: Any) -> Name:
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("a global without a name")
        path = f"{module}.{name}"
        if module.partition(".")[0] in _COMMANDING or path in _EVALUATING:
            self._refuse(f"asks to run {path[:80]!r}")
        return Name(path)

    def _refuse(self, deed: str) -> NoReturn:
        raise UserError(
            f"{self.origin} {deed}, which no checkpoint needs: nothing in it was run, "
            "and it should not be trusted"
        )

    def _call(self, callee: Any, arguments: Any) -> Any:
        if not isinstance(callee, Name) or not isinstance(arguments, tuple):
            raise ValueError("a call of something that has no name")
        builder = self.builders.get(callee.path)
        return InertObject(callee.path) if builder is None else builder(arguments)

    def _extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif not isinstance(target, InertObject):
            raise ValueError("items for something that is no list")

    def _update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, dict):
            target.update(_pairs(items))
        elif not isinstance(target, InertObject):
            raise ValueError("entries for something that is no dictionary")


def _pairs(items: list[Any]) -> dict[Any, Any]:
    keys, values = items[::2], items[1::2]
    if not all(_is_plain(key) for key in keys):
        raise ValueError("a container as a dictionary's key")
    return dict(zip(keys, values, strict=True))


def _is_plain(key: Any) -> bool:
    # Hashing nested tuples recurses in C without a limit, and hashing long ones each
    # time takes long, so they get one level and a few entries.
    parts = key if isinstance(key, tuple) else (key,)
    return len(parts) <= _LONGEST_KEY and not any(isinstance(part, _CONTAINERS) for part in parts)


_LONGEST_KEY = 8
_CONTAINERS = (tuple, list, dict, bytearray)

_LITERALS = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE"),
        *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    )
)

_EMPTY: Mapping[str, Callable[[], Any]] = {
    **{"NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False},
    **{"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple},
    "EMPTY_SET": list,  # nobody asks a set its members
}

# Reading is safe without these two: they only name a hostile file as such.
_COMMANDING = frozenset(
    (
        *("os", "posix", "nt", "subprocess", "sys", "pty", "shutil", "socket", "ctypes"),
        *("importlib", "runpy", "code", "commands", "webbrowser"),
    )
)
_EVALUATING = frozenset(
    f"{module}.{name}"
    for module in ("builtins", "__builtin__")
    for name in ("eval", "exec", "execfile", "compile", "open", "__import__")
)
