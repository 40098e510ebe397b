"""Importers of traces that other projects published."""
