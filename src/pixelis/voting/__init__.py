"""Voting: answers of a group of rollouts, their reliability and their calibration."""
