"""Teachers: they take an item and return a trace."""
