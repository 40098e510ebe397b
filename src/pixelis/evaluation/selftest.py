"""`pixelis doctor`: run each tool once on bundled media and check its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pixelis.core.errors import MissingExtraError
from pixelis.media import MediaSet, open_media
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.tools.toolbox import Toolbox

DEMO = Path(__file__).parents[1] / "demo"
PHOTO, CLIP = "astronaut_sign.jpg", "cockatoo.mp4"
SIGN = (0.41, 0.35, 0.67, 0.68)
"""The box of the sign in PHOTO, by eye."""


class SelfTestCase(NamedTuple):
    """The self-test of one tool."""

    tool: str
    media: str
    args: dict[str, Any]
    expected: str
    holds: Callable[[ToolResult], bool]


class SelfTestResult(NamedTuple):
    """The outcome of a self-test."""

    case: SelfTestCase
    result: ToolResult
    passed: bool


def covers_sign(result: ToolResult) -> bool:
    box = getattr(result.footprints[0], "box_unit", None) if result.footprints else None
    return box is not None and all(abs(a - b) < 0.06 for a, b in zip(box, SIGN, strict=True))


CHECKS = (
    SelfTestCase("SEG", PHOTO, {"target": [0.40, 0.34, 0.68, 0.69]}, "the sign, within 6 % of its edges", covers_sign),
    SelfTestCase(
        "ZOOM",
        PHOTO,
        {"box": [*SIGN]},
        "a view of the sign, enlarged",
        lambda r: r.view is not None and r.view.width > 300,
    ),
    SelfTestCase("OCR", PHOTO, {}, "FOR SALE", lambda r: {"FOR", "SALE"} <= set(r.output["text"].split())),
    SelfTestCase(
        "PROP",
        "coffee.jpg",
        {"box": [0.02, 0.45, 0.98, 0.98]},
        "large, at the bottom",
        lambda r: {"large", "bottom"} <= {found["value"] for found in r.output["properties"].values()},
    ),
    SelfTestCase(
        "TRK",
        CLIP,
        {"box": [0.33, 0.03, 0.65, 0.97], "end_s": 2.0},
        "the bird for two seconds",
        lambda r: len(r.footprints[0].frames) >= 10,  # type: ignore[union-attr]
    ),
    SelfTestCase(
        "TEMP",
        CLIP,
        {"query": "the bird moves towards the camera"},
        "a span within the clip",
        lambda r: 0.0 <= r.footprints[0].start_s < r.footprints[0].end_s <= 12.1,  # type: ignore[union-attr]
    ),
)


def run_self_test(toolbox: Toolbox) -> Iterator[SelfTestResult]:
    """Run the self-tests in turn."""
    for case in CHECKS:
        try:
            media = MediaSet((open_media(DEMO / case.media),))
        except MissingExtraError as error:  # the base reads no video files
            yield SelfTestResult(case, ToolResult.failed(case.tool, f"not tested: {error}", "disabled"), passed=True)
            continue
        result = toolbox.run(ToolCall(tool=case.tool, args=case.args), media).result
        yield SelfTestResult(case, result, result.ok and case.holds(result))
