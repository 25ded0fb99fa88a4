"""Many keys: batches, checkpoints, and jobs that run once per window."""
