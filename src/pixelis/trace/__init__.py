"""Trajectories as typed, sealed records: recorded, written with their artifacts, read, verified and replayed."""

from pixelis.trace.schema import MediaRecord, Step, TokenRecord, Trace

__all__ = ["MediaRecord", "Step", "TokenRecord", "Trace"]
