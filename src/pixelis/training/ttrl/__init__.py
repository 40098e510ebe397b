"""Phase 3: Pixel TTRL (subsec:ttrl)."""
