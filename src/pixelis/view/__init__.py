"""Evidence pages: a trace as one self-contained HTML file that opens anywhere."""

from pixelis.view.exhibit import Exhibit, make_exhibit
from pixelis.view.page import report

__all__ = ["Exhibit", "make_exhibit", "report"]
