"""Settings of the whole suite."""

from hypothesis import settings

# The same examples on every run and machine; a deadline would make slow machines fail.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")
