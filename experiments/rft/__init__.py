"""The claims of phase 2."""
