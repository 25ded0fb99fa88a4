"""A certificate of 127.0.0.1, signed by itself."""

import subprocess
from pathlib import Path

from servers.needs import needs


def certificate(folder: Path) -> tuple[Path, Path]:
    chain, private = folder / "chain.pem", folder / "key.pem"
    make = [needs("openssl", "apt-get install openssl"), "req", "-x509", "-nodes", "-days", "1", "-newkey", "ec"]
    make += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", private, "-out", chain]
    make += ["-subj", "/CN=onceward's tests", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(make, check=True, capture_output=True)
    return chain, private
