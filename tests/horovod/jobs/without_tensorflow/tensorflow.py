"""First on a job's path: TensorFlow as it is where it is not installed."""

raise ImportError("TensorFlow is kept from this job")
