"""What a postgresql:// URL shows, and says when nothing answers there."""

import pytest

from onceward.stores import open_store
from tables import each

SECRET = "hush"


@each(
    "url",
    [
        f"postgresql://user:{SECRET}@host/db",
        f"postgresql://host/db?password={SECRET}",
        f"postgresql://host/db?sslpassword={SECRET}&lanes=2",
        f"postgresql://host/db?p%61ssword={SECRET}",
    ],
)
def test_no_password_is_shown(url):
    assert SECRET not in open_store(url).url


@each("host", ["[::1", "[]", "[::1]x", "a]b"])
def test_a_host_that_cannot_be_read_is_refused_without_the_password(host):
    with pytest.raises(ValueError, match="no host and port") as refused:
        open_store(f"postgresql://user:{SECRET}@{host}/db")
    assert SECRET not in str(refused.value)
