"""Tools that behave as badly as a backend can. The worker process imports this module by name."""

import os
import signal
import time

from pydantic import Field

from pixelis.core.geometry import Value
from pixelis.tools.base import Observation, Scene, Tool, ToolArgs


class Nothing(Value):
    pass


class NoArgs(ToolArgs):
    pass


class SizeArgs(ToolArgs):
    gigabytes: float = Field(gt=0)


class Quiet(Tool[NoArgs]):
    name = "QUIET"
    summary = "Says which process it ran in."
    Args, Output = NoArgs, Nothing

    def look(self, args, scene: Scene) -> Observation:
        print("a library that prints must not disturb the replies")
        return Observation(text=str(os.getpid()), output=Nothing())


class Hanging(Tool[NoArgs]):
    name = "HANG"
    summary = "Never returns."
    Args, Output = NoArgs, Nothing

    def look(self, args, scene: Scene) -> Observation:
        time.sleep(3600)
        raise AssertionError


class Crashing(Tool[NoArgs]):
    name = "CRASH"
    summary = "Dies of a signal, as native code does."
    Args, Output = NoArgs, Nothing

    def look(self, args, scene: Scene) -> Observation:
        os.kill(os.getpid(), signal.SIGSEGV)
        raise AssertionError


class Raising(Tool[NoArgs]):
    name = "RAISE"
    summary = "Raises something of its own."
    Args, Output = NoArgs, Nothing

    def look(self, args, scene: Scene) -> Observation:
        raise ZeroDivisionError("one by nothing")


class Greedy(Tool[SizeArgs]):
    name = "GREEDY"
    summary = "Asks for memory."
    Args, Output = SizeArgs, Nothing

    def look(self, args, scene: Scene) -> Observation:
        held = bytearray(int(args.gigabytes * 2**30))
        return Observation(text=str(len(held)), output=Nothing())
