"""The proofs of gradwire: testbed, training job, benchmarks, experiments, papers."""
