"""How gradwire is proved: testbed, training job, benchmarks, experiments, papers."""
