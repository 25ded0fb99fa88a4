"""TLS for the wires. The server's certificate is always verified."""

import os
from typing import TYPE_CHECKING

from onceward.errors import StoreError
from onceward.wire.endpoints import Origin

if TYPE_CHECKING:
    import ssl

_context: "tuple[str | None, ssl.SSLContext] | None" = None


def context() -> "ssl.SSLContext":
    """Return the TLS context with the system's certificates, or those in the file AWS_CA_BUNDLE. Reads them once (20 ms).

    Raises:
        StoreError: the file cannot be read; not transient.
    """
    global _context  # one per process; the tuple is replaced as a whole
    import ssl

    bundle = os.environ.get("AWS_CA_BUNDLE") or None
    held = _context
    if held is None or held[0] != bundle:
        try:
            made = ssl.create_default_context(cafile=bundle)
        except OSError as error:
            raise StoreError(f"AWS_CA_BUNDLE={bundle}: no certificates could be read from it: {error}") from error
        _context = held = bundle, made
    return held[1]


def refusal(error: OSError, origin: Origin) -> StoreError | None:
    """Return the lasting error for a certificate that cannot be verified; None for another error, which a retry may fix."""
    import ssl

    if not isinstance(error, ssl.SSLCertVerificationError):
        return None
    return StoreError(
        f"{origin}: its certificate could not be verified: {error.verify_message}. Install the system's certificates "
        "(ca-certificates), or name a file of them in AWS_CA_BUNDLE"
    )


def wants_more(error: OSError) -> bool:
    """Return whether a non-blocking connection only waits for the rest of a TLS record."""
    import ssl

    return isinstance(error, ssl.SSLWantReadError | ssl.SSLWantWriteError)
