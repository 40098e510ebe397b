"""Phase 1: supervised fine-tuning (subsec:sft)."""
