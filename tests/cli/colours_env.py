"""What `--import` is for: a file that registers an environment of one's own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import toys

toys.register()
