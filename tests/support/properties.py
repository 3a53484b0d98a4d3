"""How many examples a property gets: all in a thorough run (`--hypothesis-profile thorough`), fewer in others."""

from typing import Any

from hypothesis import settings


def share(most: int) -> int:
    """Return how many of `most` examples this run takes."""
    profile = settings.get_current_profile_name()
    if profile == "thorough":
        return most
    return min(most, max(5, most // 4) if profile == "quick" else 5)


def examples(most: int = 100, **more: Any) -> settings:
    """Decorate a property that a thorough run tests with `most` examples. Also the settings of a state machine."""
    return settings(max_examples=share(most), **more)
