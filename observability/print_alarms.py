"""Print the CloudWatch alarms as a template. Run: python observability/print_alarms.py > observability/cloudwatch-alarms.yaml."""

import json

import yaml

from onceward.observe.cloudwatch import NAMESPACE, resources

HEAD = """\
# CloudWatch alarms for the metrics of onceward.observe.cloudwatch; docs/how-to/observing.md says what each of them means.
# aws cloudformation deploy --template-file cloudwatch-alarms.yaml --stack-name onceward-alarms
#     --parameter-overrides Service=my-function Topic=arn:aws:sns:eu-west-1:123456789012:oncall
# Made by observability/print_alarms.py. `onceward init --print ... --function NAME --alarms ARN` makes the same beside a ledger.
"""
SERVICE = "The dimension service: EmbeddedMetrics(service=...), or the function's name"

if __name__ == "__main__":
    document = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": "Alarms for a service that uses onceward",
        "Parameters": {
            "Service": {"Type": "String", "Description": SERVICE},
            "Namespace": {"Type": "String", "Default": NAMESPACE},
            "Topic": {"Type": "String", "Description": "The SNS topic that is told"},
        },
        "Resources": resources({"Ref": "Service"}, {"Ref": "Namespace"}, {"Ref": "Topic"}, prefix="${Service}"),
    }
    document = json.loads(json.dumps(document))  # else it has aliases, which CloudFormation does not read
    print(HEAD + yaml.safe_dump(document, sort_keys=False, width=1000), end="")
