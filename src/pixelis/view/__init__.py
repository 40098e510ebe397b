"""Evidence pages: traces as one self-contained HTML file."""

from pixelis.view.exhibit import Exhibit, make_exhibit
from pixelis.view.page import report

__all__ = ["Exhibit", "make_exhibit", "report"]
