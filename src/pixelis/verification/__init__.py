"""Verifiers of steps, and of the rights to media. None of them is a tool."""
