"""Gradient synchronisation: exchange buckets on a communication thread while backward computes more buckets.

- ``gradient_sync``: the object behind every front end, which starts buckets and ends steps
- ``bucket``: a bucket's work, residuals, encoding errors, and observers
- ``thread``, ``daemon``: the communication threads, their links, and their end when the process exits
- ``context``, ``group``: the state of a link, and how the ranks agree and connect
- ``messages``: small exchanges between steps
- ``layout``: the parameters in a bucket
- ``replicas``: weights and buffers, compared between ranks and sent from rank 0
- ``ledger``: the costs of all exchanges, counted and reported
- ``method``, ``trained``: base classes of training methods without DDP, and the parameters that they train
- ``flat``: the gradients of training methods in one buffer
- ``checkpoint``, ``dcp``: a method's state, saved and divided among a different number of ranks
"""
