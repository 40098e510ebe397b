"""The intrinsic and final rewards of CC-RFT."""
