"""The report of an audit: one row per check, as text, JSON and HTML."""

import html
import json
import textwrap
from dataclasses import asdict, dataclass, field

PASSED, FAILED, CRASHED, WARNED, SKIPPED = "passed", "failed", "crashed", "warned", "skipped"


@dataclass(frozen=True)
class Row:
    """The result of one check.

    Attributes:
        name: Name of the check.
        proves: The property that the check tests.
        status: "passed", "failed", "crashed" (the process ended), "warned" (allowed, but maybe unintended) or "skipped"
            (does not apply, or the function rejects the input with a clear error).
        message: Details; may be empty.
        seconds: Duration of the check.
    """

    name: str
    proves: str
    status: str
    message: str = ""
    seconds: float = 0.0


@dataclass
class Report:
    """The report of an audit. `print(report)` shows a table.

    Attributes:
        subject: Name of the audited function.
        rows: One row per check.
        versions: Versions of torch and, from `pointgrad check`, Python.
    """

    subject: str
    rows: list[Row] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether no check failed or crashed."""
        return not any(row.status in (FAILED, CRASHED) for row in self.rows)

    @property
    def summary(self) -> str:
        """The verdict and the number of checks by status."""
        order = (PASSED, FAILED, CRASHED, WARNED, SKIPPED)
        counts = {status: sum(row.status == status for row in self.rows) for status in order}
        listed = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        return f"{'ok' if self.ok else 'NOT OK'}: {listed}"

    def __getitem__(self, name: str) -> Row:
        """The row of the check with this name."""
        found = {row.name: row for row in self.rows}
        if name not in found:
            raise KeyError(f"name must be one of {', '.join(found)}, got {name!r}")
        return found[name]

    def __str__(self) -> str:
        """A table, 120 columns wide."""
        name_width = max((len(row.name) for row in self.rows), default=0)
        lines = [f"audit of {self.subject}"]
        for row in self.rows:
            first, *rest = textwrap.wrap(row.message, 120 - name_width - 12) or [""]
            lines.append(f"  {row.status:<8} {row.name:<{name_width}} {first}".rstrip())
            lines += [" " * (name_width + 12) + line for line in rest]
        return "\n".join([*lines, self.summary])

    def json(self) -> str:
        """The report as JSON: subject, ok, summary, versions and rows."""
        content = {"subject": self.subject, "ok": self.ok, "summary": self.summary, "versions": self.versions}
        return json.dumps({**content, "rows": [asdict(row) for row in self.rows]}, indent=2)

    def html(self) -> str:
        """The report as a self-contained HTML page."""
        rows = "".join(
            f'<tr class="{row.status}"><td class="status">{row.status}</td>'
            f'<td class="name">{html.escape(row.name)}</td>'
            f'<td><div class="proves">{html.escape(row.proves)}</div>{html.escape(row.message)}</td>'
            f'<td class="time">{row.seconds:.2f} s</td></tr>\n'
            for row in self.rows
        )
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return PAGE.format(
            subject=html.escape(self.subject),
            verdict="ok" if self.ok else "bad",
            summary=html.escape(self.summary),
            rows=rows,
            versions=html.escape(versions),
        )


PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>audit of {subject}</title>
<style>
:root {{ color-scheme: light dark; --line: #8884; --soft: #777; }}
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; font-weight: 600; margin-bottom: .3rem; }}
.verdict {{ display: inline-block; padding: .25rem .7rem; border-radius: .4rem; color: white; font-weight: 600; }}
.verdict.ok {{ background: #2c7a4b; }} .verdict.bad {{ background: #b3372f; }}
table {{ border-collapse: collapse; width: 100%; margin-top: 1.2rem; }}
td {{ border-top: 1px solid var(--line); padding: .5rem .6rem; vertical-align: top; overflow-wrap: anywhere; }}
.name {{ font-weight: 600; white-space: nowrap; }}
.status {{ font-weight: 600; white-space: nowrap; }}
.time {{ text-align: right; white-space: nowrap; color: var(--soft); font-variant-numeric: tabular-nums; }}
.proves {{ color: var(--soft); font-size: .85rem; }}
.passed .status {{ color: #2c7a4b; }} .failed .status, .crashed .status {{ color: #c8402f; }}
.warned .status {{ color: #b07a10; }} .skipped .status {{ color: var(--soft); }}
.failed, .crashed {{ background: #c8402f14; }}
footer {{ margin-top: 1.5rem; color: var(--soft); font-size: .85rem; }}
</style></head><body>
<h1>audit of <code>{subject}</code></h1>
<div class="verdict {verdict}">{summary}</div>
<table><tbody>
{rows}</tbody></table>
<footer>pointgrad audit &middot; {versions}</footer>
</body></html>
"""
