"""``onceward sqs``: call a function once for each message of an SQS queue."""

from typing import Annotated, Literal

from typer import Argument, Option

from onceward.aws.sqs.message import Message
from onceward.aws.sqs.worker import SqsWorker
from onceward.cli.working import STATUSES, CallOption, CommandOptions, ReportedWorker, with_command_options
from onceward.consumers.worker import WorkerOptions
from onceward.once import Once
from onceward.pipe.functions import imported

HELP = r"""
Call a function exactly once for each message of an SQS queue.

QUEUE is the queue's URL, ARN or name. The function gets the message's body. JSON is decoded and converted to the annotation of
its parameter. The function may be async. When it returns, its result is recorded and the message is deleted. When it raises,
the message comes again after a pause that doubles each time, until the queue's redrive policy moves it to the dead-letter
queue. Without a redrive policy the key is parked after 10 calls, or --max-attempts. The ledger then keeps the message, and
[bold]onceward unpark KEY --to QUEUE[/bold] sends it again. A message that comes again after its effect was recorded is deleted
without a call.

SIGTERM or ctrl-C ends it: running calls finish, and other messages are given back. Region, credentials and endpoint are found
as AWS's own tools find them: AWS_REGION, AWS_PROFILE, AWS_ENDPOINT_URL_SQS.

Example: [bold]onceward sqs orders --call shop:charge --key order.id --store dynamodb://ledger[/bold]
"""
HELP += STATUSES

QueueArgument = Annotated[str, Argument(metavar="QUEUE", help="Its URL, ARN or name.", show_default=False)]
KeyOption = Annotated[
    str | None,
    Option(
        metavar="JMESPATH", help="What identifies a message: order.id for def charge(order).", show_default="its id"
    ),
]
AttemptsOption = Annotated[
    int | None,
    Option(
        min=1,
        metavar="N",
        help="Calls after which a key is parked.",
        show_default="10 without a redrive policy, else no limit",
    ),
]
UnwrapOption = Annotated[
    Literal["sns"] | None, Option(help="The messages are in SNS's envelopes: take them out.", show_default=False)
]
VisibilityOption = Annotated[
    int | None,
    Option(
        metavar="S", help="Seconds until the messages of a killed worker come again.", show_default="the queue's own"
    ),
]
WaitOption = Annotated[float, Option(metavar="S", help="Seconds that a poll waits for a message, up to 20.")]


@with_command_options
def sqs(
    queue: QueueArgument,
    *,
    call: CallOption,
    key: KeyOption = None,
    unwrap: UnwrapOption = None,
    max_attempts: AttemptsOption = None,
    visibility: VisibilityOption = None,
    wait: WaitOption = 20.0,
    options: CommandOptions,
) -> None:
    """Work until told to stop. HELP lists the exit statuses."""

    def made(once: Once, common: WorkerOptions) -> _Reported:
        return _Reported(
            once,
            queue,
            imported(call),
            unwrap=unwrap,
            visibility=visibility,
            wait=wait,
            **common,
        )

    options.work(made, key=key, max_attempts=max_attempts)


class _Reported(ReportedWorker[Message], SqsWorker):
    def end(self) -> None:
        self.queue.close()
