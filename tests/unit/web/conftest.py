"""What tests of several faces need."""

import pytest
from django.conf import settings
from django.test import override_settings

from fixtures import closing_fixture
from onceward import Once
from web.calls import Rules
from web.django_site import MIDDLEWARE, VIEWS

once = closing_fixture(lambda: Once("memory:"))


@pytest.fixture
def site(once):
    """Set up a site with the middleware whose URLs lead to one view; gives what it is called with."""
    with override_settings(MIDDLEWARE=[MIDDLEWARE], ONCEWARD={"once": once, "name": "http", "rules": Rules()}):

        def serve(function, **options):
            VIEWS["now"] = function
            settings.ONCEWARD = {"once": once, "name": "http", "rules": Rules(), **options}

        yield serve
