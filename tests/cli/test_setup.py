"""What a command reads before the engine starts."""

from __future__ import annotations

import pkgutil

import pytest

from madlite.cli.setup import find_machine
from madlite.plan.context import Context
from tests.rows import each_row


@each_row("text", ["8xmi300x", "8XMI300X", "8xAMD Instinct MI300X"])
def test_a_pretended_machine_has_its_products_own_name(text):
    machine = find_machine(Context(), text)
    assert (machine.device, machine.product, len(machine.gpus)) == ("MI300X", "AMD Instinct MI300X", 8)


def test_only_names_of_madlite_come_out_of_it():
    import madlite

    with pytest.raises(AttributeError, match="module 'madlite' has no attribute 'Nothing'"):
        _ = madlite.Nothing
    assert all(getattr(madlite, name) is not None for name in madlite.__all__)


def test_no_public_name_is_a_modules_that_takes_its_place_once_imported():
    import madlite

    modules = {module.name for module in pkgutil.iter_modules(madlite.__path__)}
    assert len(modules) > 10 and not modules & set(madlite.__all__)
