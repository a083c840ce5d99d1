"""What can go wrong for the user, one class per phase."""


class StanzaError(Exception):
    """A mistake of the user's, told in one physical line: `PLACE: WHAT; REMEDY`."""

    def __init__(self, place: str, what: str, remedy: str) -> None:
        self.place, self.what, self.remedy = (" ".join(part.split()) for part in (place, what, remedy))
        super().__init__(place, what, remedy)

    def __str__(self) -> str:
        return f"{self.place}: {self.what}; {self.remedy}"


class UsageError(StanzaError):
    """The command line or request itself is wrong (exit status 2)."""


class LoadError(StanzaError):
    """The user's file or its functions failed."""


class TraceError(StanzaError):
    """No front-end turns the model into a graph that equals it; `module` is the path of the one that is to blame."""

    def __init__(self, place: str, what: str, remedy: str, *, module: str = "") -> None:
        super().__init__(place, what, remedy)
        self.module = module


class ProfileError(StanzaError):
    """An op could not be profiled."""


class PlanError(StanzaError):
    """No legal plan answers the request."""


class EmitError(StanzaError):
    """The program could not be written."""


class CertificateError(StanzaError):
    """The emitted program does not compute what the model computed."""
