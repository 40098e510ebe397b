"""Frozen encoders: pictures and sentences into unit vectors."""
