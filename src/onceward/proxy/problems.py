"""What the proxy itself answers, as problem details."""

from typing import Final

from onceward.http.problem import Problem

UNREACHABLE: Final = Problem(
    "upstream-unreachable",
    502,
    "The service cannot be reached",
    "The service behind this proxy takes no connection. Nothing was done. Send the request again later.",
    1,
)
NO_ANSWER: Final = Problem(
    "upstream-no-answer",
    502,
    "The service gave no answer",
    "The service behind this proxy has the request, and {why}. It may have carried the request out.",
)
SILENT: Final = Problem(
    "upstream-silent",
    504,
    "The service did not answer in time",
    "The service behind this proxy has the request, and did not answer in time. It may have carried the request out.",
)
FRAMING: Final = Problem(
    "framing", 400, "Request is ambiguous", "The request {why}. It was not passed on, and nothing was done."
)
UPGRADE: Final = Problem(
    "upgrade",
    501,
    "Upgrades do not pass",
    "This proxy passes HTTP only. Connect to the service without it for WebSocket and other protocols.",
)
METHOD: Final = Problem("method", 501, "This method does not pass", "This proxy does not pass {method} requests on.")
LOOP: Final = Problem(
    "loop", 508, "The proxy is its own upstream", "The request came back to the proxy that has passed it on."
)
