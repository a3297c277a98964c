"""The inputs of a search: the cluster, the workload, and the costs of codecs and frames."""
