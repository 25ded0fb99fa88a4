"""What a postgresql:// URL shows, and says when nothing answers there."""

import re

import pytest

from commands.command_line import Cli
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


@pytest.mark.slow
def test_a_command_says_in_one_line_that_no_server_answers(tmp_path):
    done = Cli(tmp_path).run("ls", "--store", "postgresql://nobody@127.0.0.1:1/db")
    assert done.returncode == 1
    assert re.match(r"onceward: ledger postgresql://nobody@127.0.0.1:1/db: .*refused", done.stderr)
