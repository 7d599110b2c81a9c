"""The report in a real browser: sorted, filtered, plotted, with nothing fetched and no error."""

import contextlib
import json
import os
import shutil
import signal

import msgspec
import pytest
from helpers.small_models import small_cnn, small_feeds

import lowbit
from bench.process import descendants
from lowbit.analyze.network import _Folding
from lowbit.api.compare import compare
from lowbit.evaluate.boxes import Box
from lowbit.evaluate.shown_samples import ShownSample
from lowbit.report.html import write_report
from lowbit.report.values import Network, NetworkNode, Report, Score

_FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--window-size=1200,900"
)

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_DRIVER = shutil.which("chromedriver")

pytestmark = [
    # One browser and one page for all.
    pytest.mark.xdist_group("browser"),
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
    # quit() waits without a limit until Chromium has left, and now and then one never does.
    for process in descendants(driver.service.process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    driver.service.process.wait()
    driver.command_executor.close()


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
    """Whether a plot's canvas holds more than one colour, once the browser has had time for a frame."""
    page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
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
    assert "worst activations promoted to 16 bits, measured together" in text
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
@pytest.mark.parametrize("width", [400, 800, 1200])
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


# The drawing


def drawing(page) -> dict:
    return page.execute_async_script(
        """const done = arguments[0];
        requestAnimationFrame(() => requestAnimationFrame(() => done(window.drawing.state())))"""
    )


def test_the_network_is_drawn(page) -> None:
    assert is_drawn(page, "#network")
    assert "nodes." in page.find_element("css selector", "#network .how").text


def test_the_network_zooms_and_pans(page) -> None:
    from selenium.webdriver import ActionChains

    canvas = page.find_element("css selector", "#network canvas")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    before = drawing(page)
    page.find_element("css selector", "[data-act=closer]").click()
    closer = drawing(page)
    ActionChains(page).drag_and_drop_by_offset(canvas, 40, 25).perform()
    moved = drawing(page)

    assert closer["scale"] == pytest.approx(1.4 * before["scale"])
    assert (moved["x"] - closer["x"], moved["y"] - closer["y"]) == pytest.approx((40, 25))
    page.find_element("css selector", "[data-act=fit]").click()


def test_the_keyboard_goes_through_the_network(page) -> None:
    from selenium.webdriver.common.keys import Keys

    canvas = page.find_element("css selector", "#network canvas")
    page.execute_script("document.querySelector('[data-act=fold]').click()")
    canvas.send_keys(Keys.ARROW_RIGHT)
    said = page.find_element("css selector", ".says")
    first = said.text
    canvas.send_keys(Keys.ARROW_DOWN)

    assert first
    assert said.text
    assert said.text != first
    canvas.send_keys(Keys.ENTER)
    assert page.find_element("id", "detail-title").text in said.text


def test_a_node_is_found_by_its_name(page) -> None:
    from selenium.webdriver.common.keys import Keys

    box = page.find_element("css selector", "#network input")
    box.send_keys("gemm", Keys.ENTER)

    assert "Gemm" in page.find_element("css selector", ".says").text


def test_a_command_can_be_copied(page) -> None:
    button = page.find_element("css selector", "#again .copy")
    page.execute_script("arguments[0].click()", button)

    assert page.execute_async_script(
        "const done = arguments[1]; setTimeout(() => done(arguments[0].textContent), 50)", button
    )


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


# Pages of other reports


def chain(count: int) -> Network:
    """A network of residual blocks of ten nodes."""
    rows = [
        NetworkNode(
            name=f"/layer.{i // 10}/node{i % 10}",
            op_type="Add" if i % 10 == 9 else "Conv",
            tensor=f"t{i}",
            inputs=tuple({max(0, i - 1), max(0, i - 9) if i % 10 == 9 else max(0, i - 1)})
            if i
            else (),
            weights=(),
            format="int8" if i % 7 else "",
            quantized=bool(i % 7),
        )
        for i in range(count)
    ]
    return Network(nodes=tuple(rows), root=_Folding(rows).block(0, count))


@pytest.mark.parametrize("count", [5000, 20_000])
def test_a_large_network_is_drawn_and_stays_fluid(browser, tmp_path, count) -> None:
    layers = tuple(
        Score(tensor=f"t{i}", sqnr_db=50 - 45 * i / count, cosine=1.0, max_error=0.1)
        for i in range(0, count, 10)
    )
    report = Report(
        preset="A8W8",
        target="t",
        version="1",
        data="d",
        calibration_samples=1,
        verification_samples=1,
        held_out=True,
        outputs=layers[-1:],
        layers=layers,
        network=chain(count),
    )
    path = tmp_path / "large.html"
    write_report(report, path)

    browser.get(path.as_uri())
    opened = browser.execute_script(
        """document.querySelector('#network [data-act=worst]').click();
        return window.drawing.state().open"""
    )
    # Work of the script alone, for sixty frames; what else the machine does counts in part.
    cost = browser.execute_script("return window.drawing.measure(60)")

    assert path.stat().st_size < (2_000_000 if count <= 5000 else 4_000_000)
    assert opened >= 1
    assert is_drawn(browser, "#network")
    assert cost < 60 * 50
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_several_models_can_be_chosen(browser, tmp_path) -> None:
    feeds = small_feeds(4)
    one, two = (lowbit.quantize(small_cnn(), data=feeds, preset=name) for name in ("A8W8", "XINT8"))
    reports = [compare(small_cnn(), result.quantized, feeds) for result in (one, two)]
    path = tmp_path / "both.html"
    write_report(reports[0], path, title="first", others={"second": reports[1]})

    browser.get(path.as_uri())
    browser.find_element("xpath", "//section[@id='models']//button[text()='second']").click()

    assert browser.find_element("id", "title").text == "second"
    assert "XINT8" in browser.find_element("id", "subtitle").text
    assert is_drawn(browser, "#network")
    assert is_drawn(browser, "#layers .plot")
    current = browser.find_element("css selector", "#models button[aria-current]")
    assert current.text == "second"


def test_boxes_of_both_models_lie_on_the_image(browser, tmp_path) -> None:
    box = Box(0.25, 0.5, 0.75, 1.0, 0.9, 7)
    pixel = "data:image/gif;base64,R0lGODlhAQABAIAAAP///wAAACwAAAAAAQABAAACAkQBADs="
    sample = ShownSample(image=pixel, float_boxes=(box,), quantized_boxes=())
    report = msgspec.structs.replace(
        compare(small_cnn(), small_cnn(), small_feeds(2)), samples=(sample,)
    )
    write_report(report, tmp_path / "boxes.html")

    browser.get((tmp_path / "boxes.html").as_uri())

    place, image = (
        browser.find_element("css selector", f"#samples .picture {word}").rect
        for word in ("i", "img")
    )
    assert place["x"] - image["x"] == pytest.approx(image["width"] / 4, abs=1)
    assert place["width"] == pytest.approx(image["width"] / 2, abs=1)
    assert place["y"] - image["y"] == pytest.approx(image["height"] / 2, abs=1)
    assert "quantized, 0 boxes" in browser.find_element("id", "samples").text
