"""Shared by the tests of decoding/."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package; steppers.py is beside them
