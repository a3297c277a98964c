"""Every exception of gradwire. A message says what was wanted, what came and what to do."""


class GradwireError(Exception):
    """The root: catching it catches everything that gradwire raises on purpose."""


class SpecError(GradwireError, ValueError):
    """A codec, algorithm, rate or plan was named in words that gradwire does not know."""


class TensorError(GradwireError, ValueError):
    """A tensor of the wrong dtype, shape, layout or device was handed in."""


class PayloadError(GradwireError, ValueError):
    """Encoded bytes that no encoder can have made: truncated, oversized or altered."""


class FrameError(GradwireError):
    """A frame that fails validation at the door: header, sequence or checksum."""


class LinkError(GradwireError):
    """A link could not carry a frame: the peer is gone or the transport failed."""


class LinkTimeoutError(LinkError, TimeoutError):
    """A peer did not send or take a frame within the link's timeout."""


class StateError(GradwireError, ValueError):
    """A saved state that belongs to another rank, world or model, or replicas whose states differ."""


class ExchangeError(GradwireError):
    """An exchange failed; the message names rank, peer and step, ``__cause__`` holds the reason."""


class LossyError(GradwireError):
    """Encoding keeps taking most of a parameter's gradient away, on the rank that the message names."""


class LossyWarning(UserWarning):
    """What is a ``LossyError`` where training is not strict."""


class AttachError(GradwireError, RuntimeError):
    """A model cannot take gradwire's hook: it is no DDP, has another hook, or its ranks disagree."""


class MissingPackageError(GradwireError, ImportError):
    """An optional package is not installed, or does not load; the message names gradwire's extra with it."""


class DataError(GradwireError):
    """A data set is missing, incomplete or damaged."""


class JobError(GradwireError):
    """A training job cannot start or go on: options, rendezvous or a worker that died."""


class TestbedError(GradwireError):
    """A testbed cannot be made, or what was to run in it cannot start or be watched any more."""


def shown(value: object) -> str:
    """Return what an error quotes of ``value``: its ``repr`` in one line of at most 80 characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a stranger's repr may raise anything, and one of an int of 5000 digits does
        text = f"a value of the type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
