"""What users ask: the question, the page and the heading that answer it, and words that a user may type into the search."""

from typing import NamedTuple


class Question(NamedTuple):
    """A question. ``place`` is a page of docs/ and an anchor."""

    text: str
    place: str
    words: str


QUESTIONS = [
    Question("Do I need this at all?", "explanation/comparison.md#do-you-need-this", "do I need this"),
    Question("Is a deduplication id not enough?", "explanation/comparison.md#deduplication-and-idempotency", "deduplication id"),
    Question("What if the worker dies in the middle?", "explanation/guarantees.md#a-worker-is-killed-paused-or-slow", "worker killed crash"),
    Question("Which key do I choose?", "reference/keys.md#choose-an-idempotency-key-three-questions", "choose idempotency key"),
    Question("How long a lease?", "reference/guards.md#how-long-a-lease", "how long lease"),
    Question("How long must a record stay?", "reference/guards.md#how-long-a-retention", "retention"),
    Question("I get Busy: what now?", "reference/errors.md#busy", "busy"),
    Question("A key is stuck: what now?", "how-to/runbook.md#stuck", "key stuck in progress"),
    Question("Can I clear a key?", "how-to/runbook.md#clear-a-key", "clear a key"),
    Question("How do I see what happened?", "how-to/runbook.md#see-what-happened-to-a-key", "see what happened to a key"),
    Question("How do I get the result back?", "reference/guards.md#results", "recorded result"),
    Question("May the payload change under one key?", "reference/keys.md#say-what-must-not-change", "payload changed fingerprint mismatch"),
    Question("Several effects in one handler?", "reference/steps.md#which-tool-is-for-which-effect", "several effects"),
    Question("What does an e-mail sender need?", "reference/steps.md#a-mail-that-must-not-go-twice", "send e-mail once"),
    Question("Does it work with threads and asyncio?", "explanation/guarantees.md#forks-threads-event-loops-signal-handlers", "threads asyncio fork"),
    Question("How do I test my handler?", "how-to/test-your-handler.md#test-your-handler", "pytest handler"),
    Question("Which ledger do I choose?", "how-to/choosing-a-ledger.md#which-ledger-to-choose", "choose a ledger"),
    Question("What if the ledger is down?", "explanation/guarantees.md#the-ledger-is-down", "ledger down"),
    Question("What does it cost?", "explanation/scale.md#cost-and-scale", "cost"),
    Question("How much load can it take, and what about hot keys?", "explanation/scale.md#hot-keys", "hot key"),
    Question("May clocks be wrong?", "explanation/guarantees.md#clocks", "clock skew"),
    Question("Two regions?", "reference/dynamodb.md#two-regions-global-tables", "two regions"),
    Question("FIFO queues?", "reference/sqs.md#fifo-queues", "fifo"),
    Question("What happens at Lambda's timeout?", "reference/lambda.md#timeouts", "lambda timeout"),
    Question("How do I move dead letters back?", "how-to/runbook.md#move-dead-letters-back-onceward-redrive", "dlq dead letter redrive"),
    Question("When does an HTTP client try again?", "reference/service.md#when-it-is-sent-again", "http client retry"),
    Question("How do I rename a handler?", "reference/keys.md#rename-or-move-a-handler", "rename handler"),
    Question("How do I deploy a new version, and change the table?", "reference/records.md#rolling-deploys-two-versions-on-one-ledger", "rolling deploy"),
    Question("Secrets in records?", "reference/records.md#encrypt-results", "encrypt results"),
    Question("GDPR: can I erase a person?", "reference/records.md#personal-data", "gdpr erase person"),
    Question("How do I move from Powertools?", "how-to/migrate.md#from-powertools", "migrate from powertools"),
    Question("How do I move from idemkit?", "how-to/migrate.md#from-idemkit", "idemkit"),
]  # fmt: skip
