"""Draw docs/figures/architecture.svg and the README's line of layers from the import contract in pyproject.toml.

python scripts/architecture_figure.py            # exits 1 where the picture or the README is out of date
python scripts/architecture_figure.py --write
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIGURE = ROOT / "docs" / "figures" / "architecture.svg"
README = ROOT / "README.md"
ROW, WIDTH, TOP = 44, 980, 56
COLOURS = {
    "cli": "#dbeafe", "training": "#fde68a", "rewards": "#fde68a", "data": "#dcfce7", "rollout": "#fce7f3",
    "policy": "#fce7f3", "nano": "#fce7f3", "tools": "#e0e7ff",
}  # fmt: skip


def layers() -> list[list[str]]:
    """The contract's layers from the top, each with its packages."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    lines = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip(" ()").removeprefix("pixelis.") for name in re.split(r"[|:]", line)] for line in lines]


def summary(package: str) -> str:
    """The first sentence of a package's docstring."""
    base = ROOT / "src" / "pixelis" / package.replace(".", "/")
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=[.:])\s", docstring.splitlines()[0] if docstring else "")[0].rstrip(":")


def figure() -> str:
    """One row a layer; a layer imports only from those below it."""
    rows = layers()
    height = TOP + ROW * len(rows) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="16" y="24" font-size="17" font-weight="bold" fill="#111827">The packages of pixelis</text>',
        '<text x="16" y="43" font-size="13" fill="#374151">'
        "Each imports only from the rows below it; make check holds it.</text>",
    ]
    for k, names in enumerate(rows):
        y, width = TOP + k * ROW, (WIDTH - 32 - 8 * (len(names) - 1)) / len(names)
        for j, name in enumerate(names):
            x, colour = 16 + j * (width + 8), COLOURS.get(name.split(".")[0], "#f3f4f6")
            text, label = summary(name), name.replace(".", "/")
            room = int((width - 24 - 8.4 * len(label)) / 6.4)
            text = text if len(text) <= room else text[: max(room - 1, 0)].rsplit(" ", 1)[0] + " …" if room > 24 else ""
            parts.append(
                f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{ROW - 8}" rx="6" fill="{colour}" '
                'stroke="#9ca3af"/>'
                f'<text x="{x + 10:.0f}" y="{y + 23}" font-size="14" fill="#111827"><tspan font-weight="bold">'
                f'{escape(label)}</tspan><tspan dx="10" font-size="12" fill="#374151">{escape(text)}</tspan></text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def readme_line() -> str:
    """The layers in one line, as the README shows them."""
    return " > ".join(" | ".join(name.replace(".", "/") for name in names) for names in layers())


def main() -> int:
    text = README.read_text(encoding="utf-8")
    new = re.sub(r"(?s)(<!-- layers -->\n```text\n).*?(\n```)", lambda m: m[1] + readme_line() + m[2], text)
    if "--write" in sys.argv:
        FIGURE.write_text(figure(), encoding="utf-8")
        README.write_text(new, encoding="utf-8")
        return 0
    stale = [
        name for name, same in (("README.md", text == new), (FIGURE.name, FIGURE.read_text() == figure())) if not same
    ]
    if stale:
        print(f"{', '.join(stale)}: out of date; run `python scripts/architecture_figure.py --write`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
