"""Reads results of `pointgrad bench`."""

import json
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, Any]:
    """Read a result file. Format 1 is converted to format 2, which has other names for some fields and no targets."""
    record = json.loads(path.read_text())
    if record.get("format") == 1:
        for row in record["rows"]:
            row["family"], row["implementations"] = row.pop("suite"), row.pop("contestants")
            row.pop("asked", None)
            for each in row["implementations"].values():
                each["kind"] = "related" if each["kind"] == "beside" else each["kind"]
        record["format"] = 2
    return record
