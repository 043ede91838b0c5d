"""What ROLL imports of Ray's inner modules, and nothing else."""
