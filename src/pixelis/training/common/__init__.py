"""What the three phases share: processes, run folders, optimizers, precision."""
