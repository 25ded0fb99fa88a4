"""The shop's pages."""

from uuid import uuid4

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from onceward import Parked
from onceward.django import atomic, once
from shop.models import Order

LIMIT = 1_000_00  # cents


def home(request: HttpRequest) -> HttpResponse:
    """Show the orders, and a form whose hidden key makes it one order, however often it is sent."""
    return render(request, "shop/home.html", {"orders": Order.objects.order_by("pk"), "key": uuid4()})


@require_POST
def pay(request: HttpRequest) -> HttpResponse:
    """Pay once for each key."""
    try:
        order(request.POST["key"], request.POST["reference"], int(request.POST["amount"]))
    except (CardDeclined, Parked) as error:
        return HttpResponse(str(error), status=402, content_type="text/plain")
    return redirect("home")


@once(key="key", name="shop.order", on_error="park", on_busy=5)
@atomic
def order(key: str, reference: str, amount: int) -> int:
    """Keep an order. It commits with its record: both, or neither."""
    if amount > LIMIT:
        raise CardDeclined(f"{reference}: {amount} is more than the card allows")
    return Order.objects.create(reference=reference, amount=amount).pk


class CardDeclined(Exception):
    """The bank has refused."""
