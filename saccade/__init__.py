"""saccade shows what attention heads do and know, and trains attention models to be watched.

>>> import saccade
>>> model = saccade.open_model()  # doctest: +SKIP
>>> saccade.read(model, "The Eiffel Tower is located in the city of")  # doctest: +SKIP

The public names stand in `__init__.pyi`, each with the module it comes from. They are imported on
first use: most need torch, which takes seconds to import, and `saccade --help` does not.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
