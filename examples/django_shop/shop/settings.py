"""The settings. DATABASE=postgresql://USER@HOST/NAME, or mysql://…, takes another database than a file of SQLite."""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

FOLDER = Path(__file__).parents[1]
place = urlsplit(os.environ.get("DATABASE", f"sqlite3:///{FOLDER}/shop.db"))
if place.scheme == "mysql":
    import pymysql

    pymysql.install_as_MySQLdb()

SECRET_KEY = os.environ.get("SECRET_KEY", str(uuid4()))
DEBUG = "DEBUG" in os.environ
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
ROOT_URLCONF = "shop.urls"
STATIC_URL = "static/"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "onceward.django",
    "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": f"django.db.backends.{place.scheme}",
        "NAME": place.path if place.scheme == "sqlite3" else place.path[1:],
        "USER": unquote(place.username or ""),
        "PASSWORD": unquote(place.password or ""),
        "HOST": place.hostname or "",
        "PORT": place.port or "",
    }
}
ONCEWARD = {"DATABASE": "default", "max_attempts": 3}
