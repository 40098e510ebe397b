"""Trajectories as typed, sealed records: written beside their artifacts, read back, verified and executed again."""

from pixelis.trace.schema import MediaRecord, Step, TokenRecord, Trace

__all__ = ["MediaRecord", "Step", "TokenRecord", "Trace"]
