"""The field's standard metrics as pure functions of arrays and text: no I/O, no torch, no model."""
