"""Make docs/pictures anew from a folder of runs: `python scripts/pictures.py FOLDER`.

It needs the extras dev and dashboard, and Debian's chromium.  The folder was filled
by `madlite run --tags demo --repeat 3`, and once more with --set lr=0.002.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait

TO = Path(__file__).parents[1] / "docs/pictures"
SCROLL = "document.querySelector(arguments[0]).scrollIntoView({behavior: 'instant'})"
MADLITE = (sys.executable, "-m", "madlite")


def main(folder: Path) -> None:
    """Take a picture of the report and one of the dashboard of a folder."""
    TO.mkdir(exist_ok=True)
    subprocess.run([*MADLITE, "report", "html", "-o", "report.html"], cwd=folder, check=True)
    options = webdriver.ChromeOptions()
    for argument in ("headless", "no-sandbox", "hide-scrollbars", "force-device-scale-factor=1"):
        options.add_argument(f"--{argument}")
    service = webdriver.ChromeService("/usr/bin/chromedriver")
    dashboard = subprocess.Popen([*MADLITE, "dashboard", "--port", "0"], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert dashboard.stdout is not None  # noqa: S101 - it is a pipe
    try:
        address = next(word for word in dashboard.stdout.readline().split() if word.startswith("http"))
        with webdriver.Chrome(options, service) as browser:
            for name, url, place, width, height in (
                ("report.png", (folder / "report.html").absolute().as_uri(), "#trends", 1100, 1000),
                ("dashboard.png", address, "main", 1280, 860),
            ):
                browser.set_window_size(width, height)
                browser.get(url)
                WebDriverWait(browser, 30).until(lambda page, place=place: page.find_elements("css selector", place))
                browser.execute_script(SCROLL, place)
                browser.save_screenshot(str(TO / name))
    finally:
        dashboard.terminate()
        dashboard.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
