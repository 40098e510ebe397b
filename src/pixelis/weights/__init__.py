"""Where pretrained files come from, with their SHA-256: a catalogue, a cache folder, the way from one to the other."""

from pixelis.weights.catalogue import CATALOGUE, DerivedFile, Hub, Weight, Wheel, find_weight
from pixelis.weights.pull import pull
from pixelis.weights.store import cache_dir, fingerprint, is_available, verify, weight_path, weight_state, weights_dir

__all__ = [
    "CATALOGUE",
    "DerivedFile",
    "Hub",
    "Weight",
    "Wheel",
    "cache_dir",
    "find_weight",
    "fingerprint",
    "is_available",
    "pull",
    "verify",
    "weight_path",
    "weight_state",
    "weights_dir",
]
