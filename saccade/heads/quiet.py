"""Keep transformers' progress bars and warnings away from the user, who did not ask for them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)
from transformers.utils import logging


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers inside, and give the user's own settings back afterwards.

    The hub's bars stay as they are: a download takes minutes, and its progress is wanted.
    """
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_has_bars = not are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()  # takes the hub's bars along
    if hub_has_bars:
        enable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
        if not hub_has_bars:
            disable_progress_bars()
