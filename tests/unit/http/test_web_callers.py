"""Whose key it is: scopes, credentials, and the key in the ledger."""

import base64
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import web
from onceward.http.route import KeyedRequest, PendingRequest
from onceward.keys.ledger_keys import scoped_key
from onceward.web import Route, Scope
from tables import each
from web.calls import Rules
from web.rules import UUID, asked, keyed, kind_of

CREDENTIAL = Rules(scope=Scope.CREDENTIAL)


def scope_of(request, scope=Scope.CREDENTIAL):
    return asked(Rules(scope=scope), request).key[-1]


def test_a_scope_that_was_not_chosen_is_refused_with_the_choices():
    with pytest.raises(TypeError, match=r"^scope= is missing: .*Scope\.CREDENTIAL.*django_user.*Scope\.EVERYBODY"):
        web.Rules(Route("/orders"), scope=None)


def test_another_authorization_is_another_scope():
    mine, yours = (scope_of(keyed(UUID, ("authorization", f"Bearer {token}"))) for token in ("mine", "yours"))
    assert mine == scope_of(keyed(UUID, ("authorization", "Bearer mine"))) != yours
    assert scope_of(keyed(UUID, ("x-api-key", "a"))) != scope_of(keyed(UUID, ("x-api-key", "b")))
    key = asked(CREDENTIAL, keyed(UUID, ("authorization", "Bearer secret-token"))).key
    assert "secret" not in scoped_key("orders", key)


def test_a_credential_may_be_in_other_headers():
    scope = Scope.credential("X-Auth-Token", "Api-Key")
    assert scope_of(keyed(UUID, ("x-auth-token", "a")), scope) != scope_of(keyed(UUID, ("api-key", "a")), scope)
    assert kind_of(Rules(scope=scope).begin(keyed(UUID, ("authorization", "Bearer a")))) == "unscoped"
    with pytest.raises(ValueError, match="give the names of headers"):
        Scope.credential()


def test_requests_without_a_credential_share_no_scope_but_are_refused():
    bare = [(("authorization", line),) for line in ("", " ", "Bearer", "bearer ", "Basic", "Token")]
    cookie = ("cookie", "session=1")
    of_a_page = (("x-api-key", "of all users of a page"), cookie)
    for headers in ((), (("x-auth-token", "a"),), (("x-api-key", " "),), (cookie,), of_a_page, *bare):
        answer = CREDENTIAL.begin(keyed(UUID, *headers))
        assert (answer.status, kind_of(answer)) == (400, "unscoped")


@each(
    "value",
    [
        "AWS4-HMAC-SHA256 Credential=AKID/20261121/eu-west-1/execute-api/aws4_request, SignedHeaders=host, Signature=ab",
        'Digest username="Mufasa", nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", nc=00000001',
        'OAuth oauth_nonce="kllo9940pd9333jh", oauth_timestamp="1191242096"',
        "Negotiate YII",
        "SharedKey me:c2ln",
        "Digest\tusername=x",
    ],
)
def test_credentials_that_are_new_each_time_are_refused(value):
    answer = CREDENTIAL.begin(keyed(UUID, ("authorization", value)))
    assert (answer.status, kind_of(answer)) == (400, "unscoped")
    assert isinstance(asked(Rules(scope=Scope.EVERYBODY), keyed(UUID, ("authorization", value))), KeyedRequest)


def token(**claims):
    return ".".join(
        base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (b"{}", json.dumps(claims).encode(), b"s")
    )


def test_a_token_that_expires_is_warned_of_once(caplog):
    rules = Rules(scope=Scope.credential("Authorization"))
    for opaque in ("Bearer abc", "Bearer a.b.c", f"Bearer {token(sub='ann')}", "Basic YTpi"):
        rules.begin(keyed(UUID, ("authorization", opaque)))
    assert caplog.text == ""
    for exp in (1, 2):
        assert isinstance(
            rules.begin(keyed(UUID, ("authorization", f"Bearer {token(sub='ann', exp=exp)}"))), PendingRequest
        )
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "renews its token" in caplog.text
    assert token(sub="ann", exp=1) not in caplog.text


def test_the_caller_may_be_whom_the_host_has_authenticated():
    one = scope_of(keyed(UUID, ("authorization", "Bearer first"), identity="https://issuer 7"), Scope.HOST)
    renewed = scope_of(keyed(UUID, ("authorization", "Bearer second"), identity="https://issuer 7"), Scope.HOST)
    assert one == renewed
    assert one != scope_of(keyed(UUID, ("authorization", "Bearer first"), identity="https://issuer 8"), Scope.HOST)
    assert kind_of(Rules(scope=Scope.HOST).begin(keyed(UUID, ("authorization", "Bearer first")))) == "unscoped"


def test_a_scope_may_be_a_header():
    a, b = (scope_of(keyed(UUID, ("x-tenant", tenant)), "header:X-Tenant") for tenant in "ab")
    assert a == scope_of(keyed(UUID, ("x-tenant", "a")), "header:x-tenant") != b
    for headers in ((), (("x-tenant", ""), ("x-tenant", ""))):
        assert kind_of(Rules(scope="header:X-Tenant").begin(keyed(UUID, *headers))) == "unscoped"


def test_a_scope_may_be_a_cookie_and_one_planted_by_another_site_is_not_the_caller():
    def of(line):
        return scope_of(keyed(UUID, ("cookie", line)), scope="cookie:session")

    assert of("session=1; theme=dark") == of("theme=light; session=1") == of("session=1; session=1") != of("session=2")
    assert len({of("session=planted; session=own"), of("session=planted"), of("session=own")}) == 3
    assert Rules(scope="cookie:session").begin(keyed(UUID, ("cookie", "sessions=1"))).status == 400


def test_everybodys_keys_are_told_in_so_many_words():
    first, second = (asked(Rules(), keyed(UUID, ("authorization", who))) for who in ("Basic a", "Basic b"))
    assert scoped_key("shop", first.key) == scoped_key("shop", second.key) == f"shop:{UUID}:*"


def in_ledger(key, scope, body=b""):
    rules = Rules(Route(key="body.id") if body else Route(), scope=lambda _: scope)
    return scoped_key("shop", asked(rules, keyed(key), body).key)


def test_a_key_in_the_ledger_begins_with_the_clients_own():
    assert in_ledger(UUID, 7) == f"shop:{UUID}:7"
    assert in_ledger('"a b"', "ann") == 'shop:"a b":ann'
    assert in_ledger("k", ("acme", 7)) == "shop:k:(acme,7)"
    assert in_ledger("", "ann", b'{"id": 12}') == "shop:12:/orders:ann"
    assert in_ledger("", "ann", b'{"id": ["a", 12]}') == "shop:(a,12):/orders:ann"
    long = "k" * 255
    assert in_ledger(long, "ann") == f"shop:{long}:ann"
    assert in_ledger(f'"{long[1:]} "', "ann").startswith('shop:"kkk')
    assert re.fullmatch("shop:sha256:[0-9a-f]{64}:ann", scoped_key("shop", ("k" * 700, "ann")))
    assert re.fullmatch("shop:k:sha256:[0-9a-f]{64}", in_ledger("k", "a" * 300))


@given(*[st.lists(st.text(min_size=1).filter(str.strip) | st.integers(), min_size=2, max_size=3)] * 2)
def test_no_parts_share_a_key_with_other_parts(one, other):
    one, other = ([parts[0], *["/" + str(p) for p in parts[2:]], parts[1]] for parts in (one, other))
    same = [(type(p), p) for p in one] == [(type(p), p) for p in other]
    assert (scoped_key("n", one) == scoped_key("n", other)) == same
