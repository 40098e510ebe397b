"""The question templates, a module for each family."""
