"""The claims of phase 3."""
