"""What `muster.compat.roll` is made of; its names are public there."""
