"""`python -m rollenv VERB`: the command line of this very interpreter, whatever `rollenv` is first on the path."""

import sys

from rollenv.cli import main

if __name__ == "__main__":
    sys.exit(main())
