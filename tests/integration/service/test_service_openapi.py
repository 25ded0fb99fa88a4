"""The OpenAPI document: it is committed, and what the service answers is what it says."""

import json

import pytest
import requests
import schemathesis
from schemathesis.specs.openapi.schemas import OpenApiSchema

from onceward.service.openapi import document
from onceward.service.tokens import add, generate_token
from places import DOCS
from web.services import Api, new_id, serving


def test_the_committed_document_is_that_of_the_code():
    committed = json.loads((DOCS / "reference" / "service.json").read_text(encoding="utf-8"))
    assert committed == document(), "run python docs/draw_openapi.py"


def test_the_reference_has_each_problem_and_each_action():
    page = (DOCS / "reference" / "service.md").read_text(encoding="utf-8")
    for path in document()["paths"].values():
        for operation in path.values():
            assert operation["operationId"] == "health" or f"| `{operation['operationId']}` |" in page
            for status, answer in operation["responses"].items():
                for told in answer["description"].split("; ") if int(status) >= 400 else ():
                    assert f"`{told.partition(':')[0]}`" in page, told


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openapi")
    token, line = generate_token("tester", ["*"], ["*"])
    add(str(folder / "tokens.txt"), line)
    with serving(
        f"sqlite:///{folder}/ledger.db?timeout=30", "--tokens", str(folder / "tokens.txt"), "--no-log"
    ) as service:
        service.token = token
        service.schema = schemathesis.openapi.from_url(f"{service.place}/openapi.json")
        assert (
            type(service.schema) is OpenApiSchema
        )  # imported above: Python 3.11 does not bear other parsing beside this import
        yield service


def test_the_answers_of_a_whole_life_are_those_of_the_document(described):
    """Generated requests never get past the first claim, so these go the whole way."""
    api = Api(described.place, "life", described.token)

    def checked(action, status, **fields):
        address = f"{described.place}/v1/life/{action}"
        answer = requests.post(address, json=fields, headers={"Authorization": f"Bearer {described.token}"}, timeout=60)
        assert answer.status_code == status, answer.text
        described.schema["/v1/{namespace}/" + action]["POST"].validate_response(answer)
        return answer.json()

    claim = {"key": ["order", 1], "id": new_id()}
    claim["fence"] = checked("claim", 201, **claim, derive=["mail"], input={"a": 1}, worker="w/1")["fence"]
    checked("claim", 409, key=claim["key"], id=new_id())
    checked("claim", 422, key=claim["key"], id=new_id(), input={"a": 2})
    checked("extend", 200, **claim, derive=["mail"])
    checked("step", 200, **claim, step="s")
    checked("step", 200, **claim, step="s", result=None)
    checked("step", 422, **claim, step="s", result=1)
    checked("look", 200, key=claim["key"])
    checked("complete", 200, **claim, result={"a": [1]})
    checked("complete", 422, **claim, result=1)
    checked("claim", 200, key=claim["key"], id=new_id())
    checked("claim", 422, key=claim["key"], id=claim["id"])
    checked("extend", 410, **claim)
    checked("look", 200, key=claim["key"])
    checked("look", 404, key="nothing")
    checked("release", 200, **api.claimed("b"), error="E")
    checked("park", 200, **api.claimed("b"), error="E")
    checked("claim", 423, key="b", id=new_id())
    checked("complete", 200, **api.claimed("c"), no_result="why")
    checked("claim", 409, key="c", id=new_id())
