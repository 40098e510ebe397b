"""Everything that only the small embedded policy needs."""
