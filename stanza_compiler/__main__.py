"""`python -m stanza_compiler` is `stanza-compile`."""

import sys

from stanza_compiler.cli import main

if __name__ == "__main__":
    sys.exit(main())
