"""What goes wrong, said in one line with the place and a hint."""


class TokenlagError(Exception):
    """A failure that the user can act on; printed as one line, never as a traceback.

    Args:
        message: what is wrong, without the place.
        place: file, line, key or argument where it was noticed, if known.
        hint: what to do about it, if anything can be done.
    """

    def __init__(self, message: str, *, place: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        return f"{text} (hint: {self.hint})" if self.hint else text


class InputError(TokenlagError):
    """A file, folder or stream that cannot be read as traces."""


class UsageError(TokenlagError):
    """A command line that cannot be carried out."""


class RuleError(TokenlagError):
    """A rule file that is not a rule, or whose SQL does not keep the contract."""
