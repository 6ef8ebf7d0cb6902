"""Rewards for code: a response's program, its problem's tests, and a sandbox to run the one on the other."""
