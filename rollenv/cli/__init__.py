"""The command line: `rollenv VERB`, one file per verb. Whatever a user can mend is one sentence and exit code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

_EXTRA_OF = dict.fromkeys(("torch", "transformers", "tokenizers", "safetensors", "tensorboard"), "train")
INTERRUPTED = 130
REFUSED = 2


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    Args:
        args: the words after `rollenv`; None takes those of this process.
    """
    # Before torch is loaded: its idle OpenMP threads would spin, which slows everything else on a small machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    from rollenv.cli.app import run
    from rollenv.errors import RollenvError

    try:
        return run(list(sys.argv[1:] if args is None else args) or ["--help"])
    except RollenvError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone (`rollenv envs | head -1`); Python must not complain when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        return _refuse(f"this needs {error.name}, which is not installed: pip install 'rollenv[{extra}]'")
    except OSError as error:
        place = f" '{error.filename}'" if error.filename else ""
        return _refuse(f"cannot use{place or ' a file'}: {error.strerror or error}")


def _refuse(sentence: str) -> int:
    return _say(f"error: {sentence}", REFUSED)


def _say(sentence: str, code: int) -> int:
    print(sentence, file=sys.stderr, flush=True)
    return code
