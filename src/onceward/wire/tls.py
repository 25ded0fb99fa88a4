"""TLS for the wires. The server's certificate is always verified."""

import os
from typing import TYPE_CHECKING, Final

from onceward.errors import StoreError
from onceward.wire.endpoints import Origin

if TYPE_CHECKING:
    import ssl

AWS_BUNDLE: Final = "AWS_CA_BUNDLE"  # the variables that can name a file of certificates: for AWS, and for all others
SSL_BUNDLE: Final = "SSL_CERT_FILE"
_contexts: "dict[str, tuple[str | None, ssl.SSLContext]]" = {}  # one per variable; the tuples are replaced as a whole


def context(variable: str = AWS_BUNDLE) -> "ssl.SSLContext":
    """Return the TLS context with the system's certificates, or those in the file that ``variable`` names.

    Reads them once (20 ms).

    Raises:
        StoreError: the file cannot be read; not transient.
    """
    import ssl

    bundle = os.environ.get(variable) or None
    held = _contexts.get(variable)
    if held is None or held[0] != bundle:
        try:
            context = ssl.create_default_context(cafile=bundle)
        except OSError as error:
            raise StoreError(f"{variable}={bundle}: no certificates could be read from it: {error}") from error
        _contexts[variable] = held = bundle, context
    return held[1]


def refusal(error: OSError, origin: Origin, variable: str = AWS_BUNDLE) -> StoreError | None:
    """Return the lasting error for a certificate that cannot be verified; None for another error, which a retry may fix."""
    import ssl

    if not isinstance(error, ssl.SSLCertVerificationError):
        return None
    return StoreError(
        f"{origin}: its certificate could not be verified: {error.verify_message}. Install the system's certificates "
        f"(ca-certificates), or name a file of them in {variable}"
    )


def wants_more(error: OSError) -> bool:
    """Return whether a non-blocking connection only waits for the rest of a TLS record."""
    import ssl

    return isinstance(error, ssl.SSLWantReadError | ssl.SSLWantWriteError)
