"""`python -m saccade`, the same as `saccade`; what `torchrun -m saccade` starts."""

import sys

from saccade.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
