"""The engine's multiplexed output, taken apart."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlite.platforms.docker.session import ExecOutput, Frames
from tests.platforms.fake_engine import frame

frames = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=12)


@given(frames, st.lists(st.integers(1, 60), max_size=20))
def test_every_byte_arrives_once_in_order_however_the_stream_is_cut(sent, cuts):
    stream = b"".join(frame(data, stream) for stream, data in sent)
    got: list[tuple[int, bytes]] = []
    reader = Frames(lambda data, number: got.append((number, data)))
    for size in [*cuts, len(stream)]:
        piece, stream = stream[:size], stream[size:]
        reader.feed(piece)
    for number in (1, 2):
        expected = b"".join(data for stream_of, data in sent if stream_of == number)
        assert b"".join(data for stream_of, data in got if stream_of == number) == expected
    assert all(data for _, data in got)


def test_frames_of_one_stream_that_come_together_are_passed_on_together():
    got: list[tuple[bytes, int]] = []
    Frames(lambda data, number: got.append((data, number))).feed(frame(b"a\n") * 1000 + frame(b"e", 2))
    assert got == [(b"a\n" * 1000, 1), (b"e", 2)]


def test_the_start_of_a_long_frame_is_passed_on_before_its_end():
    got: list[bytes] = []
    Frames(lambda data, number: got.append(data)).feed(frame(b"0123456789")[:12])
    assert got == [b"0123"]


@pytest.fixture
def remote():
    """An engine's end of a connection and ours, as docker hands it out for TCP with TLS: a plain socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        with ours, theirs:
            yield theirs, ours


def test_a_plain_socket_s_output_is_read_to_its_end(remote):
    engine, ours = remote
    output = ExecOutput(ours)
    assert output.read(0.0) is None
    engine.sendall(b"said")
    assert output.read(5.0) == b"said"
    engine.close()
    assert output.read(5.0) == b""
    output.close()
    assert ours.fileno() == -1


def test_a_connection_that_breaks_is_the_end_of_the_output(remote):
    engine, ours = remote
    output = ExecOutput(ours)
    engine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    engine.close()  # with a reset
    assert output.read(5.0) == b""
