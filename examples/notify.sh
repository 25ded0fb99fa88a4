#!/bin/sh
# Tell a customer of a payment: notify.sh CUSTOMER < webhook
# The webhook is on standard input; what onceward fills in comes as an argument, as it is, never through a shell.
set -eu
read -r webhook
printf '%s\t%s bytes\tattempt %s\n' "$1" "${#webhook}" "${ONCEWARD_ATTEMPT:-?}" >> notified.log
printf 'told %s\n' "$1"
