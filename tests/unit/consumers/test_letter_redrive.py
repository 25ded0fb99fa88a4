"""What the redrives of all brokers refuse before they connect."""

import pytest

from onceward import Once
from onceward.kafka import KafkaRedrive
from onceward.rabbitmq import RabbitRedrive
from tables import each


@each("redrive", [KafkaRedrive, RabbitRedrive])
@each("options", [{"limit": 0}, {"limit": -1}, {"completed": "rerun"}, {"in_doubt": "drop"}])
def test_wrong_options_are_refused(redrive, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        redrive(Once("memory:"), "orders", **options)
