"""The figure that every plot returns. Imports Matplotlib, so it is imported where a picture is made."""

from io import BytesIO
from typing import Any

from matplotlib.figure import Figure

DOTS_PER_INCH = 144
CSS_DOTS_PER_INCH = 72


class Picture(Figure):
    """A Matplotlib figure with a sentence for those who cannot see it; a notebook shows it without pyplot."""

    description: str = ""

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        file = BytesIO()
        self.savefig(file, format="png", dpi=DOTS_PER_INCH)
        width, height = (round(inches * CSS_DOTS_PER_INCH) for inches in self.get_size_inches())
        return file.getvalue(), {"width": width, "height": height, "alt": self.description}

    def __repr__(self) -> str:
        return f"<picture: {self.description}>"
