"""A seventh tool: one class with declared arguments, a declared output and `look`.

python examples/02_own_tool.py
"""

from importlib import resources

import cv2
import numpy as np

import pixelis
from pixelis.core.errors import ToolError
from pixelis.core.geometry import Box, UnitBox, Value
from pixelis.tools.base import FrameArgs, Observation, Scene, Tool, coordinates, crop


class EdgesArgs(FrameArgs):  # `media`, `frame` and `time_s` come with it
    box: UnitBox = (0.0, 0.0, 1.0, 1.0)


class EdgesOutput(Value):
    density: float


class Edges(Tool[EdgesArgs]):
    name = "EDGES"
    summary = "How busy a region is: the share of its pixels that lie on an edge."
    Args, Output = EdgesArgs, EdgesOutput

    def look(self, args: EdgesArgs, scene: Scene) -> Observation:
        index = scene.index(args)
        pixels, (x0, y0, x1, y1) = crop(scene.frame(index), args.box)
        if min(pixels.shape[:2]) < 8:
            raise ToolError(f"{coordinates(args.box)} is under 8 pixels: too small to have edges")
        density = round(float(np.mean(cv2.Canny(pixels, 60, 180) > 0)), 4)
        return Observation(
            text=f"edge density {density:.2f} in {coordinates(args.box)}",
            output=EdgesOutput(density=density),
            footprints=(Box(frame=index, x0=x0, y0=y0, x1=x1, y1=y1),),
            confidence=1.0,
        )


if __name__ == "__main__":
    picture = str(resources.files("pixelis").joinpath("demo/page.jpg"))
    config = pixelis.ToolboxConfig(plugins=("02_own_tool:Edges",))  # MODULE:CLASS; it runs in a process of its own
    with pixelis.Toolbox(config) as toolbox:
        media = pixelis.MediaSet([pixelis.open_media(picture)])
        for box in ([0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0], [0.0, 0.0, 0.005, 0.005]):
            result = toolbox.run(pixelis.ToolCall(tool="EDGES", args={"box": box}), media).result
            print(result.status, result.text or result.error)
