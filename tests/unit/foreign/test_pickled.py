"""The pickle interpreter: plain data as `pickle` reads it, and nothing else done."""

import argparse
import collections
import contextlib
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcvit.errors import UserError
from mpcvit.foreign.pickled import InertObject, Name, read_pickle

GLOBAL_SYSTEM = b"cposix\nsystem\n"
STACK_GLOBAL_SYSTEM = b"\x8c\x05posix\x8c\x06system\x93"
COMMAND = b"X\x16\x00\x00\x00touch command-was-run!"


def read(data, builders=None):
    return read_pickle(
        data, "file", builders=builders or {}, load_persistent=lambda identity: ("P", identity)
    )


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = st.text() | st.integers() | st.tuples(st.integers(), st.text())
plain = st.recursive(
    scalars | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(keys, inner)
        | st.tuples(inner)
        | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=8,
)


@given(plain, st.integers(3, 5))
@settings(max_examples=50, deadline=None)
def test_plain_data_reads_as_pickle_reads_it(value, protocol):
    assert read(pickle.dumps(value, protocol=protocol)) == value


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol_is_followed(protocol):
    value = {"a": [1, -(2**40), 2.5, None, True, ("b", "\u00fc")], 3: {}, "c": ()}
    assert read(pickle.dumps(value, protocol=protocol)) == value


def test_shared_and_recursive_objects_keep_their_identity():
    row = [1]
    row.append(row)
    first, second = read(pickle.dumps([row, row], protocol=2))
    assert first is second
    assert first[1] is first


def test_sets_become_lists():
    data = [{1}, frozenset({2})]
    assert read(pickle.dumps(data, protocol=4)) == [[1], [2]]


def test_unknown_objects_keep_their_state_only():
    namespace = read(pickle.dumps(argparse.Namespace(model="vit", lr=0.1), protocol=2))
    assert isinstance(namespace, InertObject)
    assert namespace.path == "argparse.Namespace"
    assert namespace.state == {"model": "vit", "lr": 0.1}


def test_unknown_containers_swallow_their_items():
    for value in (collections.Counter("aab"), collections.deque([1, 2])):
        assert read(pickle.dumps([value, 7], protocol=2))[1] == 7


def test_global_stays_a_name_and_only_builders_make_values():
    name, made = read(
        b"(ca\nb\nca\nb\nK\x05\x85Rl.", builders={"a.b": lambda arguments: sum(arguments)}
    )
    assert isinstance(name, Name)
    assert (name.path, made) == ("a.b", 5)


@pytest.mark.parametrize(
    "data",
    [
        GLOBAL_SYSTEM + COMMAND + b"\x85R.",  # REDUCE
        GLOBAL_SYSTEM + COMMAND + b"\x85\x81.",  # NEWOBJ
        GLOBAL_SYSTEM + COMMAND + b"\x85}\x92.",  # NEWOBJ_EX
        b"(" + GLOBAL_SYSTEM + COMMAND + b"o.",  # OBJ
        b"(" + COMMAND + b"iposix\nsystem\n.",  # INST
        STACK_GLOBAL_SYSTEM + COMMAND + b"\x85R.",
        b"cbuiltins\neval\n" + COMMAND + b"\x85R.",
        b"cos.path\njoin\n.",
    ],
)
def test_commands_are_refused_in_every_guise(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="asks to run"):
        read(data)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("callee", [b"cargparse\nNamespace\n)R", b"]", b"K\x05", b"}", b"\x88"])
def test_only_names_are_called(callee):
    with pytest.raises(UserError, match="damaged"):
        read(callee + b")R.")


def test_state_is_never_set_on_a_name_or_a_dictionary():
    state = b"}X\x04\x00\x00\x00evilK\x01s"
    for target in (b"ca\nb\n", b"}", b"]"):
        result = read(target + b"(N" + state + b"tb.")  # BUILD with slots, which sets attributes
        assert not hasattr(result, "evil")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"N",  # no STOP
        b".",  # nothing to give
        b"h\x05.",  # a memo that was never set
        b"t.",  # no mark
        b"K\x01K\x02\x86",  # breaks off
        b"K\x01K\x02a.",  # append to a number
        b"K\x01K\x02K\x03s.",  # item of a number
        b"}]K\x01s.",  # a list as key
        b"}" + b")" + b"\x85" * 100_000 + b"K\x01s.",  # a nest as key, to overflow the hash
        b"}(" + b"K\x01" * 9 + b"tK\x01s.",  # a long tuple as key
        b"(K\x01d.",  # a key without value
        b"K\x01K\x02\x93.",  # a global without name
        b"X\xff\xff\xff\x7fshort.",
    ],
)
def test_damaged_pickles_are_refused(data):
    with pytest.raises(UserError, match="damaged"):
        read(data)


@pytest.mark.parametrize("data", [b"\x82\x01.", b"\x97."])  # EXT1, NEXT_BUFFER
def test_opcodes_that_reach_outside_are_refused(data):
    with pytest.raises(UserError, match="uses the pickle opcode"):
        read(data)


def test_large_memo_index_costs_nothing():
    assert read(b"K\x07r\xff\xff\xff\x7f.") == 7


def test_odd_escapes_in_names_raise_no_warning():
    assert read(b"ca\nb\\R\n.").path == "a.b\\R"


def test_persistent_objects_come_from_the_caller():
    assert read(b"X\x01\x00\x00\x00aQ.") == ("P", "a")
    assert read(b"Pa\n.") == ("P", "a")


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_a_user_error(data):
    with contextlib.suppress(UserError):
        read(data + b".")
