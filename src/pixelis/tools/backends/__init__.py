"""The models behind the tools."""
