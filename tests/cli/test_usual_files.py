"""madengine 1's defaults, given explicitly, need no file."""

from __future__ import annotations

from madlite.cli.main import call
from tests.rows import each_row


@each_row("option", ["--tools-json-file-name", "--tools-config"])
@each_row("file", ["./scripts/common/tools.json", "scripts/common/tools.json"])
def test_the_usual_table_of_tools_need_not_be_there(tmp_path, monkeypatch, capfd, option, file):
    monkeypatch.chdir(tmp_path)
    words = ["explain", "demo", "--machine", "1xMI300X", "-c", '{"tools": [{"name": "gpu_info_power_profiler"}]}']
    assert call([*words, option, file]) == 0, capfd.readouterr().err
    assert call([*words, option, "other/tools.json"]) == 4
    assert "other/tools.json: there is no such file" in capfd.readouterr().err
