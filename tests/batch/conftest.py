from tests.run.conftest import plan, runtime  # noqa: F401 - fixtures
