"""The distributed engine: Archer's loop on Ray and stock verl, extended from outside.

Nothing here imports verl before it is needed: this file is loaded in every Ray process, and verl's own
start-up must come first there.
"""
