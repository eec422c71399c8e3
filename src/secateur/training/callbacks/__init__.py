"""MaskKeeper in the loops of others: each module here imports the framework that it is for, and nothing else does."""
