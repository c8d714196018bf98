"""A lens, how it is fitted, scored and stored; a reading made with it."""
