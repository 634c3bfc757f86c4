"""SPU's gateway: what it asks for is held to the script, and answered whole or not at all."""

import json
import socket
import struct
import subprocess
import sys
from base64 import b64encode
from dataclasses import replace

import pytest

from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.framing import Call
from mpcvit.dealer.party.gateway import Gateway, Recorder, ScriptFollower
from mpcvit.dealer.script import Kind, Script, Step
from tests.unit.dealer.jobs import SCRIPT, make_job

PATH = "/spu.mpc.semi2k.beaver.ttp_server.BeaverService/AdjustMul"
STEP = Step(kind=Kind.MUL, width=8, shape=(3,))


class Stock:
    """Material in place of a supply."""

    def __init__(self, job):
        self.content = [
            bytes([index + 1]) * job.inference(index)[0].answer_bytes
            for index in range(job.inferences)
        ]
        self.forgotten = []

    def material(self, inference):
        return memoryview(self.content[inference])

    def forget(self, inference, before):
        self.forgotten.append((inference, before))


@pytest.fixture
def job(key):
    return make_job(key, times=2, start=STEP.blocks)


def calls(job, inference):
    script, count = job.inference(inference)
    for step in script.steps:
        yield Call(step=step, counts=step.counts(count), seeds=job.seeds)
        count += step.blocks


def greeted(job, stock):
    follower = ScriptFollower()
    follower(Call(step=STEP, counts=STEP.counts(0), seeds=job.seeds))
    assert follower.seeds == job.seeds
    assert follower.count == job.start
    follower.follow(job, stock)
    return follower


def test_material_goes_out_step_by_step(job):
    follower = greeted(job, Stock(job))
    for inference in range(2):
        for call in calls(job, inference):
            buffers = follower(call)
            assert [len(buffer) for buffer in buffers] == list(call.step.answer_bytes)
            assert {byte for buffer in buffers for byte in bytes(buffer)} == {inference + 1}
    with pytest.raises(DealerError, match="no number 2"):
        follower(Call(step=STEP, counts=STEP.counts(10**6), seeds=job.seeds))


def test_the_witness_answers_zeros(job):
    follower = greeted(job, None)
    for call in calls(job, 0):
        assert not any(any(buffer) for buffer in follower(call))


def test_an_answer_that_got_lost_is_given_again(job):
    follower = greeted(job, Stock(job))
    first, second, *_ = calls(job, 0)
    assert follower(first) == follower(first)
    follower(second)
    with pytest.raises(DealerError, match="another Mul than step 2"):
        follower(first)


def other_calls(job):
    (call, following, *_) = calls(job, 0)
    square = Step(kind=Kind.SQUARE, width=8, shape=(5,))
    yield "another kind", Call(step=square, counts=square.counts(job.start), seeds=job.seeds)
    yield "another range", Call(step=call.step, counts=call.step.counts(9), seeds=job.seeds)
    yield "overlapping operands", Call(step=call.step, counts=(9, 9, 9), seeds=job.seeds)
    yield "skipped", following
    yield "other seeds", Call(step=call.step, counts=call.counts, seeds=job.seeds[::-1])


@pytest.mark.parametrize("place", range(5))
def test_anything_else_is_refused(job, place):
    name, call = list(other_calls(job))[place]
    with pytest.raises(DealerError, match="the run was given up"):
        greeted(job, None)(call)
    assert name


def test_a_recorder_writes_the_script_down():
    recorder, count = Recorder(), 40
    for step in SCRIPT.steps:
        recorder(Call(step=step, counts=step.counts(count), seeds=()))
        count += step.blocks
    assert recorder.take() == SCRIPT
    assert recorder.take() == Script(())


def test_a_conductor_holds_products_to_the_kernels_masks(key):
    opened = Step(kind=Kind.MUL, width=8, shape=(15,), kernel=0)
    product = Step(kind=Kind.DOT, width=8, shape=(2, 3, 5), kernel=0)
    plan = ((Script((opened,)), 1), (Script((product, product)), 1))
    job = replace(make_job(key, start=STEP.blocks), plan=plan)

    def asked(step, *counts):
        return Call(step=replace(step, kernel=None), counts=counts, seeds=job.seeds)

    def used_first():
        follower = greeted(job, Stock(job))
        assert {*map(bytes, follower(asked(opened, 6, 14, 22)))} == {b"\1" * 120}
        follower.require_end(0)
        return follower

    follower = used_first()
    for count in (30, 38):
        assert {*map(bytes, follower(asked(product, count, 6, count + 5)))} == {b"\2" * 48}
    follower.require_end(1)
    # as the naive way, with a fresh mask, with the other factor's, with a product's that was used
    for counts in ((30, 35, 35), (30, 35, 43), (30, 14, 35), (30, 6, 22)):
        with pytest.raises(DealerError, match="the run was given up"):
            used_first()(asked(product, *counts))


def ask(line, body, path=PATH):
    line.sendall(b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)))
    line.sendall(body)
    with line.makefile("rb") as stream:
        assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
        while (header := stream.readline()) != b"\r\n":
            name, _, value = header.partition(b":")
            if name == b"Content-Length":
                length = int(value)
        return stream.read(length)


def request(count):
    seeds = [b64encode(bytes([index]) * 384).decode() for index in range(2)]
    operands = [
        {"prg_count": place, "buffer_len": 24, "encrypted_seeds": seeds}
        for place in STEP.counts(count)
    ]
    return json.dumps({"prg_inputs": operands, "field_size": 8}).encode()


def test_a_gateway_that_closes_hangs_up():
    with Gateway(Recorder()) as gateway:
        host, port = gateway.address.split(":")
        line = socket.create_connection((host, int(port)), timeout=5.0)
        ask(line, request(0))
    with line:
        assert line.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


STRANGER = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10.0) as line:
    line.sendall(b"POST %s HTTP/1.1\\r\\nContent-Length: 2\\r\\n\\r\\n{}" % sys.argv[2].encode())
    try:
        print(len(line.recv(1)))
    except ConnectionResetError:
        print(0)
"""


def test_strangers_do_not_end_a_session():
    """Another process of this machine gets no word, and what it asks for counts for nothing."""
    with Gateway(Recorder()) as gateway:
        host, port = gateway.address.split(":")
        with socket.create_connection((host, int(port))) as line:
            ask(line, request(0))
            stranger = [sys.executable, "-c", STRANGER, port, PATH]
            assert subprocess.check_output(stranger, text=True, timeout=30.0) == "0\n"
            assert gateway.failure is None
            assert ask(line, request(STEP.blocks)).startswith(b"\0")


def test_over_one_connection_until_something_is_wrong():
    with Gateway(Recorder()) as gateway:
        host, port = gateway.address.split(":")
        with socket.create_connection((host, int(port))) as line:
            zeros = b"\0" + struct.pack("<q", 24) + bytes(24)
            assert ask(line, request(0)) == zeros
            assert ask(line, request(STEP.blocks)) == zeros
            assert ask(line, b"{}").startswith(b"\1")
            assert "cannot be understood" in str(gateway.failure)
            assert ask(line, request(2 * STEP.blocks)).startswith(b"\1")  # no way back
