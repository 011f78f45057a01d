"""`python -m tokenlag` is the same command as `diagnose`."""

import sys

from tokenlag.cli import main

if __name__ == "__main__":
    sys.exit(main())
