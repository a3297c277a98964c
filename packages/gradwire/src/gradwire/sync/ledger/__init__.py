"""What training cost and what encoding lost: counted by bucket and step, summed up, written out."""
