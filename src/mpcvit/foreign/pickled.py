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
                self.push(argument)
            elif opcode.name in _HANDLERS:
                _HANDLERS[opcode.name](self, argument)
            else:
                self._refuse(f"uses the pickle opcode {opcode.name}")
        return self.stack.pop()

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def mark(self, _: Any) -> None:
        self.below.append(self.stack)
        self.stack = []

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

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def get(self, index: int) -> None:
        self.push(self.memo[index])

    def make_name(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.push(self._name(module, name))

    def make_stack_name(self, _: Any) -> None:
        module, name = self._take(2)
        self.push(self._name(module, name))

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

    def reduce(self, _: Any) -> None:
        callee, arguments = self._take(2)
        self.push(self._make(callee, arguments))

    def reduce_with_keywords(self, _: Any) -> None:
        callee, arguments, _ = self._take(3)
        self.push(self._make(callee, arguments))

    def make_object(self, _: Any) -> None:
        callee, *arguments = self._items()
        self.push(self._make(callee, tuple(arguments)))

    def make_instance(self, argument: str) -> None:
        arguments = tuple(self._items())
        self.make_name(argument)
        self.push(self._make(self.stack.pop(), arguments))

    def _make(self, callee: Any, arguments: Any) -> Any:
        if not isinstance(callee, Name) or not isinstance(arguments, tuple):
            raise ValueError("a call of something that has no name")
        builder = self.builders.get(callee.path)
        return InertObject(callee.path) if builder is None else builder(arguments)

    def build(self, _: Any) -> None:
        state = self._take(1)[0]
        # A dictionary's attributes (torch's `_metadata`) say nothing about its items.
        if isinstance(self.stack[-1], InertObject):
            self.stack[-1].state = state

    def append(self, _: Any) -> None:
        self._extend(self._take(1))

    def extend(self, _: Any) -> None:
        self._extend(self._items())

    def _extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif not isinstance(target, InertObject):
            raise ValueError("items for something that is no list")

    def set_item(self, _: Any) -> None:
        self._update(self._take(2))

    def set_items(self, _: Any) -> None:
        self._update(self._items())

    def _update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, dict):
            target.update(_pairs(items))
        elif not isinstance(target, InertObject):
            raise ValueError("entries for something that is no dictionary")

    def make_persistent(self, argument: Any) -> None:
        self.push(self.load_persistent(argument))

    def make_stack_persistent(self, _: Any) -> None:
        self.make_persistent(self._take(1)[0])


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

_HANDLERS: Mapping[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "MARK": _Machine.mark,
    "POP": lambda machine, _: machine._take(1).clear(),
    "POP_MARK": lambda machine, _: machine._items().clear(),
    "DUP": lambda machine, _: machine.push(machine.stack[-1]),
    "PUT": _Machine.put,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.memoize,
    "GET": _Machine.get,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "EMPTY_SET": lambda machine, _: machine.push([]),  # nobody asks a set its members
    "DICT": lambda machine, _: machine.push(_pairs(machine._items())),
    "LIST": lambda machine, _: machine.push(machine._items()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine._items())),
    "TUPLE1": lambda machine, _: machine.push(tuple(machine._take(1))),
    "TUPLE2": lambda machine, _: machine.push(tuple(machine._take(2))),
    "TUPLE3": lambda machine, _: machine.push(tuple(machine._take(3))),
    "FROZENSET": lambda machine, _: machine.push(machine._items()),
    "GLOBAL": _Machine.make_name,
    "STACK_GLOBAL": _Machine.make_stack_name,
    "REDUCE": _Machine.reduce,
    "NEWOBJ": _Machine.reduce,
    "NEWOBJ_EX": _Machine.reduce_with_keywords,
    "OBJ": _Machine.make_object,
    "INST": _Machine.make_instance,
    "BUILD": _Machine.build,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.extend,
    "ADDITEMS": _Machine.extend,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "PERSID": _Machine.make_persistent,
    "BINPERSID": _Machine.make_stack_persistent,
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
