"""The rendezvous of a link's ranks: addresses, attempts after restarts, admission, and connections."""
