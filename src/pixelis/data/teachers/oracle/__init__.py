"""The oracle: a procedural teacher that knows an item's template and references."""
