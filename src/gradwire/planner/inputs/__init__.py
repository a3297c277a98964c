"""What a search begins with: the cluster, the workload, the costs of codecs and frames."""
