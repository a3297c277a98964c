"""Which plan is fastest here: enumerate, predict, explain, choose; "no compression" is one of them."""
