"""Link each image to its full size, as code hosts do."""

import re
from typing import Any

PICTURE = re.compile(r'<a\b.*?</a>|(<img\b[^>]*\bsrc="([^"]+)"[^>]*>)', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    return PICTURE.sub(
        lambda found: f'<a class="picture" href="{found[2]}">{found[1]}</a>' if found[1] else found[0], html
    )
