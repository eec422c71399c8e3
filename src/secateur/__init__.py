"""Second-order pruning of vision models on ordinary machines."""
