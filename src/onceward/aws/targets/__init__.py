"""The outbox's targets at AWS, each loaded when a message goes there: SQS, SNS, EventBridge, Kinesis and Firehose.

What a refusal means is decided by its code. A code that speaks of the message itself refuses it for good. All else passes, or a deploy
or an administrator can fix it: a missing queue, a missing permission, a disabled key. Such a message is sent again later.
"""
