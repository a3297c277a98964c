"""INCEPTIONN's tables and figures: gradients, the effects of compression, and the cost of exchanges."""
