"""Where a service is: at the URL given, the one from the environment, or the region's own."""

import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.core.urls import shown_url
from onceward.errors import StoreError

if TYPE_CHECKING:
    from urllib.parse import SplitResult

# From botocore's endpoints.json: each partition's domain, by the start of its regions' names.
_DOMAINS: Final = {
    "cn-": "amazonaws.com.cn",
    "us-iso-": "c2s.ic.gov",
    "us-isob-": "sc2s.sgov.gov",
    "eu-isoe-": "cloud.adc-e.uk",
    "us-isof-": "csp.hci.ic.gov",
    "eusc-": "amazonaws.eu",
}
_PORTS: Final = {"http": 80, "https": 443}
_FOREIGN: Final = re.compile(r"[^!-~]").search  # what a URL cannot hold


class Origin(NamedTuple):
    """The target of a connection."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """The ``Host`` header, without the scheme's default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


class Endpoints:
    """The origins of services, and of S3's buckets.

    Args:
        region: such as ``eu-west-1``.
        services: a URL for each service in use, by its name in host names. None means the one from the environment
            (:func:`from_environment`), or the region's own.

    Raises:
        ValueError: a URL is not ``https://host:port`` or ``http://host:port``.
    """

    def __init__(self, region: str, **services: str | None) -> None:
        self.region = region
        self._domain = next((domain for start, domain in _DOMAINS.items() if region.startswith(start)), "amazonaws.com")
        self._origins = {name: _origin(url or from_environment(name)) for name, url in services.items()}

    def of(self, name: str) -> Origin:
        """Return where a service is."""
        return self._origins[name] or Origin("https", f"{name}.{self.region}.{self._domain}", 443)

    def bucket(self, name: str) -> tuple[Origin, str]:
        """Return a bucket's origin and the prefix of its keys' paths (S3 User Guide, "Virtual hosting of buckets").

        Raises:
            StoreError: no bucket can have this name.
        """
        if not name.replace("-", "").replace(".", "").isalnum() or not name.isascii():
            raise StoreError(f"{name!r} is not the name of a bucket")
        origin = self.of("s3")
        if self._origins["s3"] is not None or "." in name:  # the certificate for *.s3… covers no dotted name
            return origin, f"/{name}/"
        return origin._replace(host=f"{name}.{origin.host}"), "/"


def from_environment(service: str) -> str | None:
    """Return a service's URL from the environment: AWS_ENDPOINT_URL_DYNAMODB and the like, or AWS_ENDPOINT_URL."""
    return os.environ.get(f"AWS_ENDPOINT_URL_{service.upper()}") or os.environ.get("AWS_ENDPOINT_URL") or None


def split_url(url: str) -> "tuple[Origin, SplitResult]":
    """Return the origin of an ``http://`` or ``https://`` URL, and its parts. Raises ValueError if it has a user or a fragment."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # its text quotes what stands where a port should, such as a password
        raise ValueError(f"{shown_url(url)!r} is not a URL: its host and port cannot be read") from None
    if parts.scheme not in _PORTS or not host or parts.username is not None or "#" in url or _FOREIGN(url):
        raise ValueError(
            f"{shown_url(url)!r}: give an http:// or https:// URL in ASCII, without a user, a password and a fragment"
        )
    return Origin(parts.scheme, host, _PORTS[parts.scheme] if port is None else port), parts


def _origin(url: str | None) -> Origin | None:
    if url is None:
        return None
    try:
        origin, parts = split_url(url)
    except ValueError:
        origin = None
    if origin is None or parts.query or parts.path.strip("/"):
        raise ValueError("give an endpoint as https://host or http://host:port, with nothing before or after it")
    return origin
