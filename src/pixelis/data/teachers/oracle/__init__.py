"""The oracle teacher, which knows an item's references."""
