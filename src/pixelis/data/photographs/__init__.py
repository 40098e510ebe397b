"""Photographs, signs and pages with references, to learn natural questions from."""
