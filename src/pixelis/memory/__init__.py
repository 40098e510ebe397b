"""Retrieval: de-duplication, the evaluation mask and the audit that proves them."""
