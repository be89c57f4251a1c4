"""Debian's chromium without a screen, driven by Selenium, for tests that open a page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.engine_fixture import give_up


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """Return a driver of a browser; a missing one fails in CI and skips elsewhere."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        give_up("chromium is not installed (Debian: chromium, chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    yield found
    found.quit()


def resize(browser, width: int, height: int = 900) -> None:
    """Give the page a size, which the window of a browser may not have."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(browser, scheme: str) -> None:
    """Set whether the system's colours are `light` or `dark`."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def until(browser, script: str) -> object:
    """Wait until a script returns something true, and return it."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 60).until(lambda one: one.execute_script(script))
