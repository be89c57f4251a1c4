from pathlib import Path

from madlite.testing import BackendConformance
from tiny_backend import Tiny, madlite_cards

HERE = Path(__file__).parent


class TestTiny(BackendConformance):
    backend = Tiny()
    cards = madlite_cards()
    logs = {HERE / "tiny.log": 3}
    docs = [HERE.parent / "tiny.md"]
