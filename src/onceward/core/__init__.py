"""The protocol: records, policy, the state machine, its steps and the two drivers. No I/O, no import from outside."""
