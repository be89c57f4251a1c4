"""A real training that is ended in the middle; by itself, so that another worker can have it beside the demo cards."""

from __future__ import annotations

import signal

import pytest

from tests.engine.checkout import Checkout, end

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]


def test_an_ended_training_leaves_no_process(tmp_path):
    """TERM in the middle of the steps: torchrun's worker has a session of its own."""
    checkout = Checkout(tmp_path / "mad", "host", "unix:///nonexistent/docker.sock")
    started = checkout.start("--tags", "demo_torchtitan_llama_debug:steps=100000")
    checkout.wait_for("step:  3", limit_s=480)
    assert len(checkout.left_processes()) >= 2
    code, out = end(started, signal.SIGTERM, limit_s=240)
    assert code == 143, out
    assert checkout.rows[0]["status"] == "FAILURE" and checkout.rows[0]["performance"] == ""
    checkout.assert_nothing_left()
