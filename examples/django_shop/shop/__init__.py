"""A shop with Django, whose ledger is in its own database.

    pip install 'onceward[cli]' django
    cd examples/django_shop
    python manage.py migrate
    python manage.py createsuperuser
    python manage.py runserver

Press "Pay" twice, or go back and send the form again: there is one order. The admin, at /admin/, has the ledger.
"""
