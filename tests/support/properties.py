"""hypothesis, set up for these tests: no deadlines, the same examples every time. Where it is not installed, stand-ins
that skip the tests which need it."""

import pytest

try:
    from hypothesis import given, settings
    from hypothesis import strategies as st

    settings.register_profile("tessera", deadline=None, derandomize=True, database=None)
    settings.load_profile("tessera")
except ImportError:

    class st:
        integers = sampled_from = tuples = staticmethod(lambda *arguments, **options: None)

    def settings(**options):
        return lambda test: test

    def given(**strategies):
        return pytest.mark.skip(reason="hypothesis is not installed")
