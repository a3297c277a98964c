from __future__ import annotations

from sync.test_method_first_optimizer import FEW, imported_after


def test_a_worker_has_imported_what_the_first_optimizer_needs() -> None:
    worker = (
        "from gradwire_lab.parameter_server.ps_sync import Worker\n"
        'Worker(model, gradwire.Plan(algorithm="star"), group=gradwire.loopback(2)[1])'
    )
    assert imported_after(worker) < FEW
