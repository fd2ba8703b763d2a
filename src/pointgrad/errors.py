"""Error messages for terminals, logs and pages."""


def printable(text: object) -> str:
    """Return text with escapes for line breaks, control sequences and everything else that is not printable.

    File names may contain them. Bytes of file names that are not valid UTF-8 are escaped too, so that the result can be
    printed and encoded anywhere.

    Args:
        text: A text, a path, or another object, which is converted to text.

    Example:
        >>> print(printable("a\\nb\\x1b[31m.ply"), printable("scan 1.ply"))
        a\\nb\\x1b[31m.ply scan 1.ply
    """
    plain = str(text)
    return plain if plain.isprintable() else "".join(map(_escaped, plain))


def _escaped(letter: str) -> str:
    if "\udc80" <= letter <= "\udcff":  # a byte that is not valid UTF-8
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()


class PrintableError(Exception):
    """Base of errors whose messages contain names from files or users; see `printable`."""

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


def one_line(
    error: BaseException | str, *, first: bool = False, with_type: bool = False, limit: int | None = None
) -> str:
    """Return the message of an error on a single line, escaped as by `printable`.

    Args:
        error: An exception, or a text.
        first: Keep only the first line of the message instead of joining all lines.
        with_type: Start with the name of the exception type, as a traceback does.
        limit: Maximum number of characters; longer messages end in "...".

    Returns:
        The message; the name of the exception type if the message is empty.

    Example:
        >>> one_line(ValueError("a  b\\n c")), one_line(KeyError())
        ('a b c', 'KeyError')
        >>> one_line(ValueError("a\\nb"), first=True, with_type=True)
        'ValueError: a'
    """
    text = str(error).strip()
    if first:
        text = text.partition("\n")[0]
    text = printable(" ".join(text.split()))
    if isinstance(error, BaseException):
        name = type(error).__name__
        text = (f"{name}: {text}" if with_type else text) if text else name
    return text if limit is None or len(text) <= limit else f"{text[: limit - 3]}..."
