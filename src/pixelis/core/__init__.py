"""What everything rests on: errors, geometry, configuration, atomic writes, provenance."""
