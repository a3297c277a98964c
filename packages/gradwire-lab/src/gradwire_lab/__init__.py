"""The proofs of gradwire: a testbed, a training job, benchmarks, experiments, and reproductions of papers."""
