"""`python -m stanza_compiler.rehearse` is `stanza-rehearse`."""

import sys

from stanza_compiler.rehearse.cli import main

if __name__ == "__main__":
    sys.exit(main())
