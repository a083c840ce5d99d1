"""What can go wrong in a rehearsal."""

from stanza_compiler.errors import StanzaError


class SandboxError(StanzaError):
    """This machine doesn't let hosts be emulated."""


class RunError(StanzaError):
    """A program that was rehearsed failed or hung."""
