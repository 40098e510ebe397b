"""The evidence page in a real browser."""

import dataclasses
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pixelis.view import report
from tests.view.conftest import make_exhibit, step

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]


PHONE, SCREEN = 390, 1280
FRAME = """<!doctype html><meta charset="utf-8"><iframe width="{}" height="3000" style="border:0" srcdoc="{}" onload="
  document.documentElement.dataset.probe = this.contentDocument.documentElement.dataset.probe"></iframe>"""
"""A window of this width: Chromium's own is never narrower than 500 pixels."""
LABELS = """[...document.querySelectorAll('.panel .label')].map(
  l => parseFloat(getComputedStyle(l).fontSize) * l.ownerSVGElement.getScreenCTM().a)"""


def chromium(tmp_path: Path, page: str, *options: str) -> str:
    """What Chromium prints about the page, from a file, with every name unreachable."""
    file = tmp_path / "page.html"
    file.write_text(page)
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--disable-background-networking", "--disable-sync"]
    command += ["--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=2000"]
    done = subprocess.run([*command, *options, file.as_uri()], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def probed(tmp_path: Path, page: str, expression: str, width: int | None = None) -> object:
    """The value of a JavaScript expression on the page, whose own policy is widened for the probe alone."""
    probe = f"<script>document.documentElement.dataset.probe = JSON.stringify({expression})</script>"
    page = re.sub(r"script-src &#39;[^;]*;", "script-src &#39;unsafe-inline&#39;", page, count=1)
    page = page.replace("</body>", probe + "</body>")
    if width is not None:
        page = FRAME.format(width, html.escape(page, quote=True))
    found = re.search(r'<html[^>]* data-probe="([^"]*)"', chromium(tmp_path, page, "--dump-dom"))
    assert found, "the probe did not run"
    return json.loads(html.unescape(found[1]))


def test_the_page_shows_every_step_with_its_pictures_and_asks_nobody_for_anything(tmp_path, chain, film):
    page = report([chain, film])
    seen = probed(
        tmp_path,
        page,
        """({
          steps: [...document.querySelectorAll('.step h2')].map(h => h.textContent.trim()),
          drawn: [...document.querySelectorAll('.panel svg')].every(s => s.getBBox().width > 0 && s.clientHeight > 20),
          marks: document.querySelectorAll('.panel .mark').length,
          wide: document.documentElement.scrollWidth <= innerWidth,
          requests: performance.getEntriesByType('resource').filter(r => !r.name.startsWith('data:')).length,
        })""",
    )
    tools = ["SEG", "ZOOM", "OCR", "TRK", "TEMP", "TRK"]
    numbers = [1, 2, 3, 4, 1, 2]
    assert seen["steps"] == [f"Step {n}: {tool}" for n, tool in zip(numbers, tools, strict=True)]
    assert seen["drawn"]
    assert seen["marks"] >= 12
    assert seen["wide"], "the page must not scroll sideways"
    assert seen["requests"] == 0


@pytest.mark.parametrize(("width", "most"), [(PHONE, 16.0), (SCREEN, 24.0)])
def test_labels_are_readable_at_every_width_and_stay_in_the_picture(tmp_path, chain, film, width, most):
    seen = probed(
        tmp_path,
        report([chain, film]),
        f"""({{
          sizes: {LABELS}, width: innerWidth, scroll: document.documentElement.scrollWidth,
          inside: [...document.querySelectorAll('.panel .label')].every(l => {{
            const label = l.getBoundingClientRect(), svg = l.ownerSVGElement.getBoundingClientRect();
            return label.left >= svg.left - 4 && label.right <= svg.right + 4 && label.top >= svg.top - 4;
          }}),
        }})""",
        width,
    )
    assert seen["width"] == width
    assert seen["scroll"] <= seen["width"], "the page must not scroll sideways"
    assert len(seen["sizes"]) >= 10
    assert min(seen["sizes"]) >= 11.0
    assert max(seen["sizes"]) <= most
    assert seen["inside"]


def test_a_vote_is_read_on_a_phone_without_scrolling_sideways(tmp_path, chain, row):
    vote = row["vote"] | {"shown": 0}
    for ballot in vote["ballots"]:
        ballot["tools"] = ["SEG", "ZOOM", "OCR", "PROP", "TRK", "TEMP"] * 2
    seen = probed(
        tmp_path,
        report([dataclasses.replace(chain, vote=vote)]),
        """({
          scroll: document.documentElement.scrollWidth, width: innerWidth,
          box: (b => b.scrollWidth - b.clientWidth)(document.querySelector('.vote .wide')),
          cells: [...document.querySelectorAll('.vote td')].map(c => {
            const r = c.getBoundingClientRect();
            const letters = parseFloat(getComputedStyle(c).fontSize);
            return r.width > 40 && r.height > 10 && r.right <= innerWidth && letters >= 13;
          }),
          names: [...document.querySelectorAll('.vote tbody tr:first-child td')].map(
            c => getComputedStyle(c, '::before').content.replaceAll('"', '').trim()),
          legend: [...document.querySelectorAll('.vote dt')].map(t => t.textContent),
        })""",
        PHONE,
    )
    assert seen["scroll"] <= seen["width"] == 390
    assert seen["box"] <= 0
    assert len(seen["cells"]) == 9 * len(vote["ballots"])
    assert all(seen["cells"])
    assert seen["names"] == ["rollout", "answer", "tools", "exp(−H)", "Cal", "VisFid", "r", "weight", "of all weight"]
    assert seen["legend"] == ["exp(−H)", "Cal", "VisFid", "r"]


def test_a_failed_call_shows_the_picture_and_the_region_that_it_looked_at(tmp_path, photograph):
    failed = step("OCR", {"box": [0.5, 0.5, 0.75, 1.0]}, status="failed", error="OCR found no text")
    misread = step("OCR", {"boxx": 1}, status="invalid", error="boxx is no argument")
    seen = probed(
        tmp_path,
        report([make_exhibit([photograph], [failed, misread])]),
        """({
          panels: [...document.querySelectorAll('.step')].map(s => s.querySelectorAll('.panel svg').length),
          argument: (([p, a]) => [(a.left - p.left) / p.width, (a.right - p.left) / p.width])(
            ['.panel svg', '.argument'].map(q => document.querySelector(q).getBoundingClientRect())),
          caption: document.querySelector('.panel figcaption').textContent,
          legend: [...document.querySelectorAll('.legend dt')].map(t => t.textContent),
        })""",
    )
    assert seen["panels"] == [1, 0]  # an invalid call looked at nothing
    assert seen["argument"] == pytest.approx([0.5, 0.75], abs=0.01)
    assert seen["caption"] == "Image_0, what the call looked at"
    assert seen["legend"] == ["dashed", "failed", "hash chain"]


def test_hostile_text_does_not_run(tmp_path, hostile):
    dom = chromium(tmp_path, report([hostile]), "--dump-dom")
    title = re.search(r"<title>(.*?)</title>", dom, re.DOTALL)
    assert title is not None
    assert html.unescape(title[1]) != "taken"
    assert title[1].startswith("&lt;script&gt;")
    assert "<img" not in dom
    assert dom.count("<script") == 1


def test_even_a_script_that_got_into_the_page_is_stopped_by_its_policy(tmp_path, chain):
    page = report([chain]).replace("</main>", "</main><script>document.title='taken'</script>")
    assert "<title>taken</title>" not in chromium(tmp_path, page, "--dump-dom")


def test_the_pages_own_script_lights_up_a_footprint_in_list_and_picture_and_hides_the_marks(tmp_path, chain):
    seen = probed(
        tmp_path,
        report([chain]),
        """(() => {
          const button = document.querySelector('#t1-s3 .found button');
          const lit = () => document.querySelectorAll('#t1-s3 .lit').length;
          const result = {before: lit()};
          button.dispatchEvent(new MouseEvent('mouseover', {bubbles: true})); result.over = lit();
          button.dispatchEvent(new MouseEvent('mouseout', {bubbles: true})); result.out = lit();
          button.click(); result.held = button.getAttribute('aria-pressed');
          button.dispatchEvent(new MouseEvent('mouseout', {bubbles: true})); result.stays = lit();
          button.click(); result.released = button.getAttribute('aria-pressed');
          const toggle = document.querySelector('#t1-s3 .toggle'); toggle.click();
          result.hidden = getComputedStyle(document.querySelector('#t1-s3 .marks')).display;
          result.toggle = toggle.getAttribute('aria-pressed');
          return result;
        })()""",
    )
    assert seen == {
        "before": 0, "over": 2, "out": 0, "held": "true", "stays": 2, "released": "false",
        "hidden": "none", "toggle": "false",
    }  # fmt: skip


def test_the_page_is_painted(tmp_path, chain):
    from PIL import Image

    chromium(tmp_path, report([chain]), f"--screenshot={tmp_path / 'page.png'}", "--window-size=1000,1400")
    picture = Image.open(tmp_path / "page.png").convert("RGB")
    assert picture.size == (1000, 1400)
    colours = {colour for _, colour in picture.getcolors(2**24)}
    assert len(colours) > 200
    red, green, _ = picture.crop((300, 560, 700, 800)).resize((1, 1)).getpixel((0, 0))
    assert red > green, "the mask is drawn in its warm colour"
