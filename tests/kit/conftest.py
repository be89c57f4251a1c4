"""Files of a good backend, as the tests of the kit have them."""

from tests.testing.conftest import place

__all__ = ["place"]
