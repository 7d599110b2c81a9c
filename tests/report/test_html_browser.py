"""The report in a real browser: sorted, filtered, plotted, with nothing fetched and no error."""

import json
import os
import shutil

import pytest
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit.api import compare
from lowbit.report.html import write_report

_FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--window-size=1200,900"
)

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.skipif(
        not (_CHROMIUM and _DRIVER), reason="chromium and chromedriver are not installed here"
    ),
    # selenium leaves a socket to be closed when it is collected
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = _CHROMIUM
    for flag in (*_FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(_DRIVER, env=dict(os.environ)))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    feeds = small_feeds(4)
    quantized = lowbit.quantize(small_cnn(), data=feeds).quantized
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(compare(small_cnn(), quantized, feeds), path)
    browser.get(path.as_uri())
    return browser


def cells(page, column: int) -> list[str]:
    return page.execute_script(
        "return [...document.querySelectorAll('#table tbody tr')].map(r => r.cells[arguments[0]].textContent)",
        column,
    )


def is_drawn(page, selector: str) -> bool:
    """Whether a plot's canvas holds more than one colour."""
    return page.execute_script(
        """const canvas = document.querySelector(arguments[0] + ' canvas');
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        return new Set(new Uint32Array(data.buffer)).size > 3""",
        selector,
    )


def test_plots_are_drawn(page) -> None:
    for place in ("#layers .plot", "#budget .plot", ".histogram", ".channels"):
        assert is_drawn(page, place), place


def test_the_budget_is_shown(page) -> None:
    shares = [text for text in cells(page, 7) if text != "-"]

    assert len(shares) > 5
    assert all(text.endswith(" %") for text in shares)
    text = page.find_element("id", "budget").text
    assert "worst tensors promoted to 16 bits, measured together" in text
    assert "of the noise recovered" in text


def test_the_table_sorts_both_ways_by_a_click_and_by_the_keyboard(page) -> None:
    from selenium.webdriver.common.keys import Keys

    button = page.find_element("css selector", "th[data-key=sqnr] button")
    button.click()
    up = [float(text) for text in cells(page, 4) if text not in {"-", "exact"}]
    button.send_keys(Keys.ENTER)
    down = [float(text) for text in cells(page, 4) if text not in {"-", "exact"}]

    assert len(up) > 5
    assert up == sorted(up)
    assert down == sorted(up, reverse=True)
    head = page.find_element("css selector", "th[data-key=sqnr]")
    assert head.get_attribute("aria-sort") == "descending"


def test_the_filter_leaves_what_matches(page) -> None:
    box = page.find_element("id", "filter")
    box.send_keys("r1")

    assert set(cells(page, 1)) == {"r1"}
    assert " of " in page.find_element("id", "shown").text
    page.execute_script(
        "arguments[0].value = ''; arguments[0].dispatchEvent(new Event('input'))", box
    )
    assert len(cells(page, 1)) > 5


def test_a_tensor_opens_by_the_keyboard_alone(page) -> None:
    from selenium.webdriver.common.keys import Keys

    button = page.find_element("xpath", "//button[@class='open'][text()='w2']")
    button.send_keys(Keys.ENTER)

    assert page.find_element("id", "detail-title").text == "w2"
    assert is_drawn(page, ".channels")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
def test_it_fits_any_width_in_either_scheme(page, scheme, width) -> None:
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    # An animation frame passes before plots have the new width.
    wide = page.execute_async_script(
        """const done = arguments[0];
        requestAnimationFrame(() => requestAnimationFrame(() =>
            done(document.documentElement.scrollWidth)))"""
    )
    background = page.execute_script("return getComputedStyle(document.body).backgroundColor")

    assert wide <= width
    assert (int(background.split("(")[1].split(",")[0]) < 128) == (scheme == "dark")


def test_nothing_was_fetched_and_nothing_complained(page) -> None:
    assert page.get_log("browser") == []
    sent = [
        message["params"]
        for entry in page.get_log("performance")
        if (message := json.loads(entry["message"])["message"])["method"]
        == "Network.requestWillBeSent"
    ]
    # The browser's own first tab loads pages of its own.
    asked = [p["request"]["url"] for p in sent if p["documentURL"] == page.current_url]
    assert [url for url in asked if not url.startswith("data:")] == [page.current_url]
