"""A stand-in for an installed AReaL: the names that `muster.compat.areal` takes from it.

Everything here says that it was used, so that tests see who asked for it.
"""
