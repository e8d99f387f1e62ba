"""The widget behind `haaw.view.widget`. Imports anywidget, so it is imported where a widget is made."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import anywidget
import traitlets

from haaw.errors import HaawError
from haaw.view.bundle import PAGE
from haaw.view.calculator import calculator_parts
from haaw.view.content import Content, to_json
from haaw.view.export import bundle_of, page_html
from haaw.view.source import TraceSource


class NotebookView(anywidget.AnyWidget):
    """The page in a frame of its own that may do nothing but run its scripts and ask for steps and values.

    `page` is its HTML with the story inside. A question is `{"haaw": "ask", "number", "what", …}`, the answer
    `{"haaw": "said", "number", "said"}` with what the server of `haaw view` would have said.
    """

    _esm = (PAGE / "widget.js").read_text(encoding="utf-8")
    page = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int().tag(sync=True)

    def __init__(self, source: TraceSource, *, height: int, room_bytes: int) -> None:
        self._content = Content(source)
        bundle: dict[str, Any] = {"story": self._content.story, "templates": [], "steps": {}, "values": {}}
        bundle["calculator"] = calculator_parts()
        if room_bytes:
            bundle |= bundle_of(self._content, room_bytes=room_bytes)
            bundle.pop("file", None)
        super().__init__(page=page_html({**bundle, "asks": True}), height=height)
        self.on_msg(self._heard)

    def _heard(self, _: Any, message: Any, buffers: Any) -> None:
        if isinstance(message, Mapping) and message.get("haaw") == "ask":
            self.send({"haaw": "said", "number": message.get("number"), "said": self._answer(message)})

    def _answer(self, message: Mapping[str, Any]) -> Any:
        try:
            if message.get("what") == "step":
                said = self._content.step(str(message.get("stage")), _number(message.get("step"), -1))
            else:
                said = self._content.value(str(message.get("path")), _number(message.get("head"), None))
        except LookupError as error:
            return {
                "error": f"the trace has no {error.args[0]!s:.120}"
                if error.args
                else "the trace has no such value"
            }
        except HaawError as error:
            return {"error": str(error)}
        except (OSError, ValueError):  # as of a file that is closed
            return {"error": "the trace cannot be read any more; open it again and run this cell again"}
        return json.loads(to_json(said))

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The widget, and a picture for where none runs."""
        made = super()._repr_mimebundle_(**kwargs)
        if made is None:
            return None
        data, metadata = made
        picture = self._picture()
        if picture is None:
            return made
        png, facts = picture
        encoded = base64.b64encode(png).decode("ascii")
        return {**data, "image/png": encoded}, {**metadata, "image/png": facts}

    def _picture(self) -> tuple[bytes, dict[str, Any]] | None:
        from haaw.view.plots.phases import plot_phases

        source = self._content.source
        try:
            return plot_phases(source.trace, request=source.request)._repr_png_()
        except (HaawError, OSError, ValueError):
            return None


def _number(given: Any, otherwise: Any) -> Any:
    return given if isinstance(given, int) and not isinstance(given, bool) else otherwise
