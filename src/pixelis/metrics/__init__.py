"""The evaluators that everybody knows, as pure functions of arrays and text: no I/O, no torch, no model."""
