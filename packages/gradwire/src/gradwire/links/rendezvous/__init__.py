"""The rendezvous of a link's ranks: where they listen, which attempt they belong to, and who is admitted."""
