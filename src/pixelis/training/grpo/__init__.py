"""Phase 2: Curiosity–Coherence reinforcement fine-tuning (subsec:ccrft)."""
