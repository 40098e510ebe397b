"""The reproduction of the paper's claims on nano. Needs a clone."""
