"""Verifiers of steps and of rights; none of them is a tool."""
