"""The settings for Django's own tests: two databases of one server."""

import os

SERVER = {
    "ENGINE": "django.db.backends.postgresql",
    "HOST": os.environ["PGHOST"],
    "PORT": os.environ["PGPORT"],
    "USER": os.environ["PGUSER"],
}
DATABASES = {"default": {**SERVER, "NAME": "first"}, "other": {**SERVER, "NAME": "second"}}
TEST_RUNNER = "compat_runner.Runner"

# As in test_sqlite.py, the example of Django.
SECRET_KEY = "django_tests_secret_key"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
