"""Files of a good backend."""

from __future__ import annotations

import pytest

from tests.testing.good import write_files


@pytest.fixture
def place(tmp_path):
    """Return a folder with templates, log and page."""
    return write_files(tmp_path)
