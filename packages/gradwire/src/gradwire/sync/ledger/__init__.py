"""The costs of training and the errors of encoding: counted by bucket and step, summed up, written out."""
