"""A ledger as code: ``onceward init --print cloudformation|sam|terraform``.

``parts`` adds a function's queue and alarms to the document that the store describes (``stores/dynamodb/template.py``).
CloudFormation reads it as JSON; ``terraform`` writes it in Terraform's language.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from onceward.aws.templates.parts import Consumer, with_consumer, with_function
from onceward.aws.templates.terraform import terraform

__all__ = ["FORMS", "Consumer", "render"]

Document = dict[str, Any]

_WHAT: Final = (
    "# The ledger of onceward, as `onceward init` makes it, and policies for those who use it.\n"
    "# The table stays when the stack is deleted, because without its records everything would run again.\n"
)
_CLOUDFORMATION: Final = _WHAT + (
    "# aws cloudformation deploy --stack-name NAME --template-file FILE --capabilities CAPABILITY_IAM\n"
)
_SAM: Final = _WHAT + "# sam build && sam deploy --guided --capabilities CAPABILITY_IAM\n"

_SAM_HEAD: Final = {"AWSTemplateFormatVersion": "2010-09-09", "Transform": "AWS::Serverless-2016-10-31"}

_WRITERS: Final[Mapping[str, Callable[[Document], str]]] = {
    "cloudformation": lambda document: _CLOUDFORMATION + _text(document),
    "terraform": terraform,
    "sam": lambda document: _SAM + _text({**_SAM_HEAD, **document}),
}
FORMS: Final = tuple(_WRITERS)


def render(form: str, document: Document, consumer: Consumer | None = None) -> str:
    """Return a document as text in one of :data:`FORMS`. A ``consumer`` adds its queue and mapping.

    "sam" declares the function itself, for you to complete. All others expect that it exists.
    """
    if consumer is not None:
        document = (with_function if form == "sam" else with_consumer)(document, consumer)
    return _WRITERS[form](document)


def _text(document: Document) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
