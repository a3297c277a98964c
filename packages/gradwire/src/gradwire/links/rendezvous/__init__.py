"""How the ranks of a link find each other, and who is admitted."""
