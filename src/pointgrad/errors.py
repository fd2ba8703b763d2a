"""Error messages for terminals, logs and pages."""


def one_line(
    error: BaseException | str, *, first: bool = False, with_type: bool = False, limit: int | None = None
) -> str:
    """Return the message of an error on a single line.

    Bytes of file names that are not valid UTF-8 are escaped, so that the result can be printed and encoded anywhere.

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
    try:
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a surrogate that does not stand for a byte
        text = text.encode("utf-8", "backslashreplace").decode()
    text = " ".join(text.split())
    if isinstance(error, BaseException):
        name = type(error).__name__
        text = (f"{name}: {text}" if with_type else text) if text else name
    return text if limit is None or len(text) <= limit else f"{text[: limit - 3]}..."
